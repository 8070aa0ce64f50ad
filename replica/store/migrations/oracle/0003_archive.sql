-- usable from version 1
--
-- The archive's newest head, and how far completions may be pruned: see the Postgres migrations 0002 and 0004.
CREATE TABLE archive_head (
    archive_id  VARCHAR2(255 BYTE) NOT NULL,
    lines       NUMBER(19)         NOT NULL,
    hash        VARCHAR2(255 BYTE) NOT NULL,
    last_offset NUMBER(19)         NOT NULL,
    CONSTRAINT archive_head_pk PRIMARY KEY (archive_id)
)
/
ALTER TABLE participant ADD pruned_to NUMBER(19) DEFAULT 0 NOT NULL
/
