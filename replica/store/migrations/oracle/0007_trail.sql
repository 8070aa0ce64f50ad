-- usable from version 1
--
-- The operators' trail: see the Postgres migration of this name.
CREATE TABLE operator_trail (
    number_ NUMBER(19)           NOT NULL,
    line    VARCHAR2(4000 BYTE)  NOT NULL,
    CONSTRAINT operator_trail_pk PRIMARY KEY (number_)
)
/
