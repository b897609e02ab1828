-- Who came and opened an auction within the same ten seconds?
SELECT p.id, p.name, p.window_start
FROM (
  SELECT id, name, window.start AS window_start, window.end AS window_end
  FROM person GROUP BY id, name, window(ts, '10 seconds')
) p
JOIN (
  SELECT seller, window.start AS window_start, window.end AS window_end
  FROM auction GROUP BY seller, window(ts, '10 seconds')
) a
ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end
