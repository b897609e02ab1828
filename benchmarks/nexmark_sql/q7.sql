-- The highest bids of each ten seconds.
SELECT m.period_end, b.auction, b.bidder, b.price, b.ts, b.extra
FROM bid b
JOIN (SELECT max(price) AS price, window.end AS period_end FROM bid GROUP BY window(ts, '10 seconds')) m
ON b.price = m.price AND b.ts >= m.period_end - INTERVAL 10 SECONDS AND b.ts < m.period_end
