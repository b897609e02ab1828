-- The ten highest bids of each auction.
SELECT auction, bidder, price, channel, url, ts, extra, place FROM (
  SELECT auction, bidder, price, channel, url, ts, extra,
    row_number() OVER (PARTITION BY auction ORDER BY price DESC, ts) AS place
  FROM bid
) WHERE place <= 10
