-- Prices that fall at least three times in a row and then rise, within an hour. In this directory: strandline run price_dips.sql
-- A preview, without a job: echo "SELECT * FROM dips" | strandline sql price_dips.sql

SET trigger = 'available-now';  -- ends when all files are read; without it, the job waits for others
SET drain = TRUE;               -- then no tick comes any more: what is open is decided

CREATE STREAM ticks (symbol STRING, price DECIMAL(10, 2), at TIMESTAMP, WATERMARK FOR at DELAY '2 minutes')
  USING files OPTIONS (path 'ticks', format 'csv', header TRUE);

CREATE VIEW dips AS
  SELECT * FROM ticks MATCH_RECOGNIZE (
    PARTITION BY symbol
    ORDER BY at
    MEASURES FIRST(DOWN.price) AS top, LAST(DOWN.price) AS bottom, UP.price AS price, UP.at AS at,
             COUNT(DOWN.price) AS falling
    ONE ROW PER MATCH
    AFTER MATCH SKIP PAST LAST ROW
    PATTERN (DOWN{3,} UP) WITHIN INTERVAL '1' HOUR
    DEFINE DOWN AS LAST(DOWN.price, 1) IS NULL OR price < LAST(DOWN.price, 1),
           UP AS price > LAST(DOWN.price)
  );

CREATE SINK files USING files OPTIONS (path 'dips', format 'json');
INSERT INTO files TABLE dips;
