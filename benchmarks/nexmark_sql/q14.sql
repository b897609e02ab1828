-- Some bids in euros, with the time of day, and how often a letter is in their text.
SELECT auction, bidder, 0.908 * price AS price,
  CASE
    WHEN hour(ts) >= 8 AND hour(ts) <= 18 THEN 'dayTime'
    WHEN hour(ts) <= 6 OR hour(ts) >= 20 THEN 'nightTime'
    ELSE 'otherTime'
  END AS bid_time_type,
  ts, extra, length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bid
WHERE 0.908 * price > 1000000 AND 0.908 * price < 50000000
