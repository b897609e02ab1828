"""Jobs: started, supervised, driven epoch by epoch, stopped."""
