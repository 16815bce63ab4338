BEGIN TRANSACTION;
CREATE TABLE facts (
            serial INTEGER PRIMARY KEY,
            epoch INTEGER NOT NULL,
            stream TEXT NOT NULL,
            writer TEXT NOT NULL,
            prev_token INTEGER NOT NULL,
            token INTEGER NOT NULL,
            rows BLOB NOT NULL CHECK (typeof(rows) = 'blob'),
            committed_at_ms INTEGER NOT NULL,
            digest TEXT NOT NULL
        );
INSERT INTO "facts" VALUES(2,1,'events','w1',1,2,X'5B5B226576656E74732032225D5D',1700000000000,'f4992b5a7b1fb3af3ac3b739c71c9a335fb9e975c962b150580b72b058174d53');
INSERT INTO "facts" VALUES(3,1,'events','w1',2,3,X'5B5B226576656E74732033225D5D',1700000000000,'ec3bd4ed6a05fd27f7dc43fcde0015a8f0ddbc8c23634c7e39b82636fc416b03');
CREATE TABLE keyed (key BLOB PRIMARY KEY, serial INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE leases (
            uuid TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            registered INTEGER NOT NULL,
            serial INTEGER NOT NULL,
            made_ms INTEGER NOT NULL,
            seen_ms INTEGER,
            address TEXT NOT NULL,
            ended_ms INTEGER,
            reason TEXT NOT NULL
        , key TEXT) WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
INSERT INTO "meta" VALUES('boots',1);
INSERT INTO "meta" VALUES('epoch',2);
INSERT INTO "meta" VALUES('version',5);
CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "notes" VALUES('history','22222222-2222-4222-8222-222222222222');
INSERT INTO "notes" VALUES('server_name','example.org');
INSERT INTO "notes" VALUES('uuid','11111111-1111-4111-8111-111111111111');
CREATE TABLE places (
            name TEXT PRIMARY KEY,
            epoch INTEGER NOT NULL,
            serial INTEGER NOT NULL,
            digest TEXT NOT NULL
        ) WITHOUT ROWID;
INSERT INTO "places" VALUES('begin',1,1,'ca6664eb2378b00f2e08bc80148e3aa489f7def3ff66146d19957d66ea1c3b02');
INSERT INTO "places" VALUES('filled',1,0,'0000000000000000000000000000000000000000000000000000000000000000');
INSERT INTO "places" VALUES('indexed',0,1,'');
CREATE TABLE positions (
            stream TEXT NOT NULL,
            writer TEXT NOT NULL,
            token INTEGER NOT NULL,
            PRIMARY KEY (stream, writer)
        ) WITHOUT ROWID;
INSERT INTO "positions" VALUES('events','w1',2);
CREATE TABLE receipts (
            stream TEXT NOT NULL,
            key TEXT NOT NULL,
            owner TEXT NOT NULL,
            part INTEGER NOT NULL,
            request TEXT NOT NULL,
            epoch INTEGER NOT NULL,
            first_serial INTEGER,
            tokens TEXT NOT NULL,
            at_ms INTEGER NOT NULL,
            PRIMARY KEY (stream, key, owner, part)
        ) WITHOUT ROWID;
INSERT INTO "receipts" VALUES('events','k','',0,'r',1,1,'[1]',5);
CREATE TABLE turns (
            epoch INTEGER PRIMARY KEY,
            serial INTEGER NOT NULL,
            digest TEXT NOT NULL,
            at_ms INTEGER NOT NULL,
            why TEXT NOT NULL,
            stream TEXT NOT NULL,
            token INTEGER NOT NULL
        );
INSERT INTO "turns" VALUES(2,3,'ec3bd4ed6a05fd27f7dc43fcde0015a8f0ddbc8c23634c7e39b82636fc416b03',1700000000000,'lost','events',2);
CREATE TABLE voids (
            stream TEXT NOT NULL,
            epoch INTEGER NOT NULL,
            token INTEGER NOT NULL,
            PRIMARY KEY (stream, epoch)
        ) WITHOUT ROWID;
INSERT INTO "voids" VALUES('events',2,2);
CREATE INDEX facts_by_token ON facts (stream, token);
CREATE INDEX keyed_by_serial ON keyed (serial);
CREATE INDEX receipts_by_time ON receipts (at_ms);
CREATE INDEX receipts_by_serial ON receipts (first_serial);
COMMIT;
