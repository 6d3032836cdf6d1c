"""Who may do what in a PostgreSQL database: its owner writes; a role can be let hand in, and nothing else.

Such a role reads, and calls two functions: one that takes its turn, one that appends what handing in takes: a
submission, an admission, or money of an agent's own that is held. Hash, number and time are the database's. It cannot
move money, take a step of the operator's, change anything, or write in another way, whatever it was granted besides:
a trigger refuses rows that do not come from the owner. That a submission is signed the database cannot tell; a report
without its agent's signature is found by whoever verifies.
"""

from __future__ import annotations

import sqlalchemy as sa

LOCK_MS, STATEMENT_MS = 60_000, 600_000
_HANDING_IN = ("submit", "admit", "place", "surveyed", "reveal")
_TAKES = "text, text, text, text, text, bigint, text, text, text"
_FUNCTIONS = ("journal_lock()", f"journal_submit({_TAKES})")

# a text as Python's json writes it in ASCII
_QUOTED = """
CREATE OR REPLACE FUNCTION journal_quoted(given text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    found text := '"';
    letter text;
    point integer;
BEGIN
    IF given IS NULL THEN RETURN 'null'; END IF;
    IF given COLLATE "C" ~ '^[ -~]*$' THEN RETURN to_json(given)::text; END IF;
    FOREACH letter IN ARRAY string_to_array(given, NULL) LOOP
        point := ascii(letter);
        found := found || CASE
            WHEN point < 127 THEN substr(to_json(letter)::text, 2, length(to_json(letter)::text) - 2)
            WHEN point < 65536 THEN '\\u' || lpad(to_hex(point), 4, '0')
            ELSE '\\u' || to_hex(55296 + ((point - 65536) >> 10)) || '\\u' || to_hex(56320 + ((point - 65536) & 1023))
        END;
    END LOOP;
    RETURN found || '"';
END $$
"""

_LOCK = """
CREATE OR REPLACE FUNCTION journal_lock() RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = {schema}, pg_temp AS $$ BEGIN LOCK TABLE journal IN EXCLUSIVE MODE; END $$
"""

_SUBMIT = """
CREATE OR REPLACE FUNCTION journal_submit(
    new_id text, new_kind text, new_round text, new_debit text, new_credit text, new_amount bigint,
    new_settles text, new_body text, new_currency text
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp AS $$
DECLARE
    last record;
    made_at text := to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') || '+00:00';
    line text;
    held numeric;
BEGIN
    LOCK TABLE journal IN EXCLUSIVE MODE;
    IF new_id IS NULL OR NOT starts_with(new_id, new_round || ':') OR new_settles IS NOT NULL
       OR NOT EXISTS (SELECT 1 FROM journal WHERE id = new_round || ':open' AND kind = 'open') THEN
        RAISE EXCEPTION 'this role can only hand in to a round that is open';
    END IF;
    IF (new_kind = 'reveal') <> EXISTS (SELECT 1 FROM journal WHERE id = new_round || ':seal')
       OR EXISTS (SELECT 1 FROM journal WHERE id IN (new_round || ':score', new_round || ':void')) THEN
        RAISE EXCEPTION 'this role can only hand in what the round takes now';
    END IF;
    IF new_kind = 'pending' THEN
        SELECT coalesce(sum(CASE
            WHEN debit = new_debit AND (kind IN ('posted', 'post') OR (kind = 'pending' AND id NOT IN
                (SELECT settles FROM journal WHERE settles IS NOT NULL))) THEN -amount
            WHEN credit = new_debit AND kind IN ('posted', 'post') THEN amount
            ELSE 0 END), 0)
        INTO held FROM journal
        WHERE (debit = new_debit OR credit = new_debit) AND coalesce(currency, '') = coalesce(new_currency, '');
        IF NOT starts_with(new_debit, 'agent:') OR new_credit <> 'escrow:' || new_round OR new_amount > held THEN
            RAISE EXCEPTION 'this role can only hold what an agent has, for its round';
        END IF;
    ELSIF new_kind NOT IN ({kinds}) OR new_amount IS NOT NULL THEN
        RAISE EXCEPTION USING MESSAGE = 'this role can only hand in, and not record a ' || new_kind;
    END IF;
    SELECT seq, hash, at INTO last FROM journal ORDER BY seq DESC LIMIT 1;
    IF last.at COLLATE "C" > made_at THEN made_at := last.at; END IF;
    line := '[' || journal_quoted(last.hash) || ',' || (last.seq + 1) || ',' || journal_quoted(new_id)
        || ',' || journal_quoted(new_kind) || ',' || journal_quoted(new_round) || ',' || journal_quoted(new_debit)
        || ',' || journal_quoted(new_credit) || ',' || coalesce(new_amount::text, 'null') || ',null,'
        || journal_quoted(new_body) || ',' || journal_quoted(made_at) || ',' || journal_quoted(new_currency) || ']';
    INSERT INTO journal (seq, id, kind, round, debit, credit, amount, body, hash, at, currency)
    VALUES (last.seq + 1, new_id, new_kind, new_round, new_debit, new_credit, new_amount, new_body,
        encode(sha256(convert_to(line, 'UTF8')), 'hex'), made_at, new_currency);
END $$
"""


def make_functions(connection: sa.Connection) -> None:
    """The functions, for nobody to call until somebody is let."""
    schema = _schema(connection)
    kinds = ", ".join(f"'{kind}'" for kind in _HANDING_IN)
    for text in (_QUOTED, _LOCK.format(schema=schema), _SUBMIT.format(schema=schema, kinds=kinds)):
        connection.exec_driver_sql(text)
    for name in _FUNCTIONS:
        connection.exec_driver_sql(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC")


def let_hand_in(connection: sa.Connection, role: str) -> None:
    """Let a role read and hand in; it is made if there is none, and cannot log in until its password is set."""
    quoted = connection.dialect.identifier_preparer.quote_identifier(role)
    if connection.scalar(sa.text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}) is None:
        connection.exec_driver_sql(f"CREATE ROLE {quoted} NOLOGIN")
    connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {_schema(connection)} TO {quoted}")
    connection.exec_driver_sql(f"GRANT SELECT ON journal, tree, signatures TO {quoted}")
    for name in _FUNCTIONS:
        connection.exec_driver_sql(f"GRANT EXECUTE ON FUNCTION {name} TO {quoted}")


def is_owner(connection: sa.Connection) -> bool:
    """Whether this role may write the journal itself."""
    query = "SELECT pg_has_role(current_user, relowner, 'MEMBER') FROM pg_class WHERE oid = 'journal'::regclass"
    return bool(connection.scalar(sa.text(query)))


def take_turn(connection: sa.Connection) -> None:
    """Wait for the journal, as a role that may only call."""
    connection.execute(sa.text("SELECT journal_lock()"))


def hand_in(connection: sa.Connection, id: str, *content: object) -> None:
    """Append an entry, as a role that may only call."""
    values = {f"v{n}": value for n, value in enumerate((id, *content))}
    names = ", ".join(f"CAST(:{name} AS {kind})" for name, kind in zip(values, _TAKES.split(", "), strict=True))
    connection.execute(sa.text(f"SELECT journal_submit({names})"), values)


def set_limits(connection: object, _: object) -> None:
    """How long anything may wait, run, or stand idle while others wait for it."""
    connection.autocommit = True  # type: ignore[attr-defined]
    with connection.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute(
            f"SET lock_timeout = {LOCK_MS}; SET statement_timeout = {STATEMENT_MS}; "
            f"SET idle_in_transaction_session_timeout = {STATEMENT_MS}"
        )
    connection.autocommit = False  # type: ignore[attr-defined]


def _schema(connection: sa.Connection) -> str:
    name = connection.scalar(sa.text("SELECT current_schema()"))
    return connection.dialect.identifier_preparer.quote_identifier(str(name))
