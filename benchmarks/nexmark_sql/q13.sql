-- Each bid, with what a table that does not change says of its auction.
SELECT b.auction, b.bidder, b.price, b.ts, s.value
FROM bid b
JOIN (SELECT key, concat('value ', key) AS value FROM range(10000) AS numbers(key)) s ON b.auction % 10000 = s.key
