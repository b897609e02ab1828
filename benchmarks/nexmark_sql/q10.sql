-- Each bid, with the columns by which its files are partitioned.
SELECT auction, bidder, price, ts, extra, date_format(ts, 'yyyy-MM-dd') AS day, date_format(ts, 'HH:mm') AS minute
FROM bid
