-- What were the last ten winning bids before each one for auctions of the same seller, and this one, on average?
SELECT seller, avg(price) OVER (
  PARTITION BY seller ORDER BY bid_ts ROWS BETWEEN 10 PRECEDING AND CURRENT ROW
) AS price
FROM (
  SELECT a.seller, b.price, b.ts AS bid_ts,
    row_number() OVER (PARTITION BY a.id, a.seller ORDER BY b.price DESC, b.ts) AS place
  FROM auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires
) WHERE place <= 1
