-- The winning bid of each auction.
SELECT id, item_name, description, initial_bid, reserve, expires, seller, category, extra, ts,
  auction, bidder, price, bid_ts, bid_extra
FROM (
  SELECT a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.expires, a.seller, a.category, a.extra, a.ts,
    b.auction, b.bidder, b.price, b.ts AS bid_ts, b.extra AS bid_extra,
    row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.ts) AS place
  FROM auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires
) WHERE place <= 1
