-- Totals by shop, kept up to date. End it with Ctrl-C, or kill -9; run it again: it goes on where it was.

SET name = '@job@';
SET trigger = '1s';
SET checkpoints.directory = 'checkpoints';
SET checkpoints.every = '10s';

CREATE STREAM orders (id BIGINT, shop STRING, amount DECIMAL(10, 2), at TIMESTAMP)
  USING files OPTIONS (path 'orders', format 'json', max_files_per_epoch 1);

CREATE TABLE shops (shop STRING, city STRING) USING csv OPTIONS (path 'shops.csv', header TRUE);

CREATE VIEW totals AS
  SELECT shop, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY shop;

CREATE VIEW cities AS
  SELECT city, sum(total) AS total FROM totals JOIN shops USING (shop) GROUP BY city;

-- Rows that change go into a table with a key, exactly once; or as changes, with 1 and -1, into any sink.
CREATE SINK results USING sqlite OPTIONS (path 'totals.db', table 'totals', key 'shop', create TRUE);
CREATE SINK screen USING console;

INSERT INTO results TABLE totals;
INSERT INTO screen CHANGES OF cities;
