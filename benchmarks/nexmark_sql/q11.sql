-- How many bids did somebody make before ten seconds of silence?
SELECT bidder, session_window.start AS window_start, session_window.end AS window_end, count(*) AS bids
FROM bid GROUP BY bidder, session_window(ts, '10 seconds')
