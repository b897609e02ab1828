-- Which auctions had the most bids in the last ten seconds? Every two seconds.
WITH counts AS (
  SELECT window.end AS period_end, auction, count(*) AS bids
  FROM bid GROUP BY window(ts, '10 seconds', '2 seconds'), auction
)
SELECT c.period_end, c.auction, c.bids
FROM counts c JOIN (SELECT period_end, max(bids) AS most FROM counts GROUP BY period_end) m
ON c.period_end = m.period_end AND c.bids >= m.most
