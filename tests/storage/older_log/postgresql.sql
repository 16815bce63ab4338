CREATE SCHEMA synrepl;

CREATE TABLE synrepl.facts (
    serial bigint NOT NULL,
    epoch bigint NOT NULL,
    stream text NOT NULL,
    writer text NOT NULL,
    prev_token bigint NOT NULL,
    token bigint NOT NULL,
    rows bytea NOT NULL,
    committed_at_ms bigint NOT NULL,
    digest text NOT NULL
);

CREATE TABLE synrepl.keyed (
    key bytea NOT NULL,
    serial bigint NOT NULL
);

CREATE TABLE synrepl.leases (
    uuid text NOT NULL,
    name text NOT NULL,
    registered integer NOT NULL,
    serial bigint NOT NULL,
    made_ms bigint NOT NULL,
    seen_ms bigint,
    address text NOT NULL,
    ended_ms bigint,
    reason text NOT NULL,
    key text
);

CREATE TABLE synrepl.meta (
    key text NOT NULL,
    value bigint NOT NULL
);

CREATE TABLE synrepl.notes (
    name text NOT NULL,
    value text NOT NULL
);

CREATE TABLE synrepl.places (
    name text NOT NULL,
    epoch bigint NOT NULL,
    serial bigint NOT NULL,
    digest text NOT NULL
);

CREATE TABLE synrepl.positions (
    stream text NOT NULL,
    writer text NOT NULL,
    token bigint NOT NULL
);

CREATE TABLE synrepl.receipts (
    stream text NOT NULL,
    key text NOT NULL,
    owner text NOT NULL,
    part bigint NOT NULL,
    request text NOT NULL,
    epoch bigint NOT NULL,
    first_serial bigint,
    tokens text NOT NULL,
    at_ms bigint NOT NULL
);

CREATE TABLE synrepl.turns (
    epoch bigint NOT NULL,
    serial bigint NOT NULL,
    digest text NOT NULL,
    at_ms bigint NOT NULL,
    why text NOT NULL,
    stream text NOT NULL,
    token bigint NOT NULL
);

CREATE TABLE synrepl.voids (
    stream text NOT NULL,
    epoch bigint NOT NULL,
    token bigint NOT NULL
);

INSERT INTO synrepl.facts VALUES (2, 1, 'events', 'w1', 1, 2, '\x5b5b226576656e74732032225d5d', 1700000000000, 'f4992b5a7b1fb3af3ac3b739c71c9a335fb9e975c962b150580b72b058174d53');
INSERT INTO synrepl.facts VALUES (3, 1, 'events', 'w1', 2, 3, '\x5b5b226576656e74732033225d5d', 1700000000000, 'ec3bd4ed6a05fd27f7dc43fcde0015a8f0ddbc8c23634c7e39b82636fc416b03');

INSERT INTO synrepl.meta VALUES ('version', 5);
INSERT INTO synrepl.meta VALUES ('boots', 1);
INSERT INTO synrepl.meta VALUES ('epoch', 2);

INSERT INTO synrepl.notes VALUES ('uuid', '11111111-1111-4111-8111-111111111111');
INSERT INTO synrepl.notes VALUES ('history', '22222222-2222-4222-8222-222222222222');
INSERT INTO synrepl.notes VALUES ('server_name', 'example.org');

INSERT INTO synrepl.places VALUES ('begin', 1, 1, 'ca6664eb2378b00f2e08bc80148e3aa489f7def3ff66146d19957d66ea1c3b02');
INSERT INTO synrepl.places VALUES ('filled', 1, 0, '0000000000000000000000000000000000000000000000000000000000000000');
INSERT INTO synrepl.places VALUES ('indexed', 0, 1, '');

INSERT INTO synrepl.positions VALUES ('events', 'w1', 2);

INSERT INTO synrepl.receipts VALUES ('events', 'k', '', 0, 'r', 1, 1, '[1]', 5);

INSERT INTO synrepl.turns VALUES (2, 3, 'ec3bd4ed6a05fd27f7dc43fcde0015a8f0ddbc8c23634c7e39b82636fc416b03', 1700000000000, 'lost', 'events', 2);

INSERT INTO synrepl.voids VALUES ('events', 2, 2);

ALTER TABLE ONLY synrepl.facts
    ADD CONSTRAINT facts_pkey PRIMARY KEY (serial);

ALTER TABLE ONLY synrepl.keyed
    ADD CONSTRAINT keyed_pkey PRIMARY KEY (key);

ALTER TABLE ONLY synrepl.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (uuid);

ALTER TABLE ONLY synrepl.meta
    ADD CONSTRAINT meta_pkey PRIMARY KEY (key);

ALTER TABLE ONLY synrepl.notes
    ADD CONSTRAINT notes_pkey PRIMARY KEY (name);

ALTER TABLE ONLY synrepl.places
    ADD CONSTRAINT places_pkey PRIMARY KEY (name);

ALTER TABLE ONLY synrepl.positions
    ADD CONSTRAINT positions_pkey PRIMARY KEY (stream, writer);

ALTER TABLE ONLY synrepl.receipts
    ADD CONSTRAINT receipts_pkey1 PRIMARY KEY (stream, key, owner, part);

ALTER TABLE ONLY synrepl.turns
    ADD CONSTRAINT turns_pkey PRIMARY KEY (epoch);

ALTER TABLE ONLY synrepl.voids
    ADD CONSTRAINT voids_pkey PRIMARY KEY (stream, epoch);

CREATE INDEX facts_by_token ON synrepl.facts USING btree (stream, token, serial);

CREATE INDEX keyed_by_serial ON synrepl.keyed USING btree (serial);

CREATE INDEX receipts_by_serial ON synrepl.receipts USING btree (first_serial);

CREATE INDEX receipts_by_time ON synrepl.receipts USING btree (at_ms);

