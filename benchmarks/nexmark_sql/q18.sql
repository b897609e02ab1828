-- Everybody's last bid for each auction.
SELECT auction, bidder, price, channel, url, ts, extra FROM (
  SELECT auction, bidder, price, channel, url, ts, extra,
    row_number() OVER (PARTITION BY bidder, auction ORDER BY ts DESC) AS place
  FROM bid
) WHERE place <= 1
