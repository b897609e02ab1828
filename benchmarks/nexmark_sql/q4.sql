-- What are winning bids on average, by category?
SELECT category, count(*) AS auctions, avg(final) AS price FROM (
  SELECT max(b.price) AS final, a.category
  FROM auction a JOIN bid b ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires
  GROUP BY a.id, a.category
) GROUP BY category
