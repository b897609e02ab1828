-- Each bid, as it came.
SELECT auction, bidder, price, ts, extra FROM bid
