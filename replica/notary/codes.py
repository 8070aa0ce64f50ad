"""The error catalogue: every code for applications and operators, each defined once, with its remedy."""

from __future__ import annotations

from enum import Enum


class Retry(Enum):
    """What a client may do with the very same request."""

    NO = "no"  # the same request would get the same answer; change the request, or what the remedy names
    SAME = "same"  # nothing is decided or known; send the same request again, with the same ids


_A_PERSON = Retry.NO, True  # a process that ends with it is not restarted: a person must change something first


class Code(Enum):
    """Stable codes, each with its HTTP status (0: never leaves the replica), title, remedy and `Retry`. The last value
    says whether a process that ended with the code needs a person before it is started again.

    A code is never reused for another meaning, and never removed.
    """

    def __init__(self, status: int, title: str, remedy: str, retry: Retry = Retry.NO, person: bool = False) -> None:
        self.status = status
        self.title = title
        self.remedy = remedy
        self.retry = retry
        self.person = person

    @property
    def final(self) -> bool:
        """Whether the log will never notarise the same content under the same transaction id after this code.

        After any other code it may: a window opens, a party is registered, a command id is forgotten, or a submission
        that never reached the log is sent again. A closed window is final as well: see `Refused.final`.
        """
        return self.name in ("STATE_CONFLICT", "TX_ID_REUSED")

    # The request cannot be read. Nothing was logged.
    MALFORMED_JSON = (
        400,
        "The body is not the JSON document that this call takes",
        "Correct the field that the detail names and send the request again.",
    )
    MALFORMED_REQUEST = (
        400,
        "The notarisation request breaks a rule of its format",
        "Correct what the detail names; the canonical form is described in docs/formats.md.",
    )
    TOO_MANY_STATES = (
        400,
        "The request names more states than the notary takes",
        "Split the transaction: inputs and references together must be fewer than 10,000.",
    )
    WRONG_LEDGER = (
        400,
        "The request was signed for another ledger",
        "Send it to the notary of that ledger, or sign it for this one: GET /v1/notary has its `ledger_id`.",
    )
    EMPTY_BATCH = (400, "The batch has no submission", "Send at least one submission.")
    BATCH_TOO_LARGE = (
        400,
        "The batch has more submissions than one call takes",
        "Send the submissions in smaller batches; the detail names the limit.",
    )
    BODY_TOO_LARGE = (
        413,
        "The body is too large",
        "Send less in one call; the detail names the limit.",
    )
    BODY_TOO_SLOW = (
        408,
        "The body did not arrive in time",
        "Send the whole body at once; the detail names the limit.",
        Retry.SAME,
    )
    MEDIA_TYPE_UNSUPPORTED = (
        415,
        "The body is not sent as plain JSON",
        "Send Content-Type: application/json, in UTF-8 and without Content-Encoding.",
    )
    UPGRADE_REQUIRED = (
        426,
        "The resource is a WebSocket",
        "Open it with a WebSocket client; docs/api.md describes the frames.",
    )
    WRONG_HOST = (
        403,
        "The request names another host than this notary, or comes from a foreign page",
        "Use a loopback address, or a name of the configuration: `host_names` takes further ones.",
    )
    WINDOW_EXCEEDED = (
        400,
        "The stream has more submissions without an answer than its window",
        "Keep to the window of the first frame; open a new stream, and send again what has no answer.",
    )
    HTTP_MALFORMED = (
        400,
        "The HTTP request cannot be read",
        "Correct the HTTP client; the detail says what was found. The connection was closed.",
    )
    SIGNATURE_INVALID = (
        401,
        "The signature does not match the canonical request and key",
        "Sign the canonical bytes of exactly this request with the key that is sent along; they also have user, "
        "command, act_as and deduplication period, exactly as they are submitted.",
    )
    PARTY_UNKNOWN = (
        403,
        "The party has not registered this key",
        "Ask the notary's operator to register this key for this X.500 name in the log: notary party add.",
    )
    KEY_NOT_VALID = (
        403,
        "The key is registered for the party, but not for this time",
        "Sign with a key whose period has begun and not ended. The operator knows the periods: they are in the log"
        " (notary party list), where a revoked key has none.",
    )
    # Callers and their rights.
    TOKEN_MISSING = (
        401,
        "The call has no token",
        "Send `Authorization: Bearer TOKEN` with a token of the configured issuer.",
    )
    TOKEN_INVALID = (
        401,
        "The token is not accepted",
        "Get a new token; the detail says whether it is too old, for another audience, or signed by an unknown key.",
    )
    PERMISSION_DENIED = (
        403,
        "The token does not grant this",
        "Sign with the token's user, where the detail names two; else use a token with the right that it names, "
        "or ask the operator to grant it.",
    )
    RATE_EXCEEDED = (
        429,
        "This user or connection has asked more than its share of this front end, or had it look through more rows; "
        "nothing was written",
        "Send the same request again after Retry-After.",
        Retry.SAME,
    )
    # Refusals: definite answers of the notary, decided by the log.
    STATE_CONFLICT = (
        409,
        "At least one state was consumed by another transaction",
        "Do not resubmit: the states listed are spent. The hash identifies the consuming transaction to its parties.",
    )
    TX_ID_REUSED = (
        409,
        "This transaction id was notarised with other content",
        "Use a fresh transaction id; an id stands for one content for ever.",
    )
    TIME_WINDOW_CLOSED = (
        422,
        "The request was judged outside its time window",
        "If the window has not begun, send the same request again inside it. If it is over, use another window under "
        "another transaction id.",
    )
    # Commands.
    COMMAND_ID_REUSED = (
        409,
        "This command id belongs to another transaction",
        "Use a fresh command id for each transaction.",
    )
    DEDUPLICATION_PERIOD_TOO_LONG = (
        400,
        "The deduplication period reaches further back than the notary remembers; nothing was logged",
        "Ask for a period within the bound that the answer names, or for none: then all that is remembered counts.",
    )
    SUBMISSION_IN_FLIGHT = (
        409,
        "A submission of this command is not decided yet",
        "Send the same command again after Retry-After; it cannot run twice.",
        Retry.SAME,
    )
    # Look-ups.
    TX_NOT_FOUND = (
        404,
        "No transaction with this id was notarised",
        "Check the id; a request that is still in flight may be notarised later.",
    )
    # Streams, pages and queries.
    QUERY_INVALID = (400, "The query cannot be read", "Correct the parameter that the detail names; see docs/api.md.")
    OFFSET_PRUNED = (
        410,
        "Completions after this offset are pruned",
        "Start at the bound that `pruned_to` names; what lies before is in the request log's archive only.",
    )
    OFFSET_AFTER_END = (
        416,
        "The ledger ends before this offset",
        "Ask again through the balanced endpoint; if it persists, the offset is of another ledger.",
        Retry.SAME,
    )
    READER_TOO_SLOW = (
        408,
        "The stream was not read fast enough",
        "Open it again after the last offset that was read.",
        Retry.SAME,
    )
    TOO_MANY_STREAMS = (
        503,
        "The front end has as many streams open as it takes, in all or of this caller",
        "Open it again after Retry-After, or read pages.",
        Retry.SAME,
    )
    FEED_UNAVAILABLE = (
        503,
        "Completions cannot be read just now",
        "Ask again with the same offset after Retry-After.",
        Retry.SAME,
    )
    # What only a log on the participant's own nodes can answer.
    EARLY_NOT_OFFERED = (
        400,
        "This notary's request log gives no early acceptance; nothing was logged",
        'Submit without accept=early. Only a notary with log.kind = "raft" accepts early.',
    )
    NO_LOG_NODES = (
        404,
        "The request log is not on log nodes of this participant",
        'Follow completions instead. Only a notary with log.kind = "raft" has places view.seqno to ask for.',
    )
    LOG_NODES_SILENT = (
        503,
        "No node of the request log answers just now",
        "Ask again after Retry-After.",
        Retry.SAME,
    )
    ROUTE_NOT_FOUND = (
        404,
        "No such resource",
        "GET /v1/docs shows the paths of the API; so does docs/api.md.",
    )
    METHOD_NOT_ALLOWED = (405, "The resource does not take this method", "Use the method that the Allow header names.")
    # Not now.
    NOT_ACTIVE = (
        503,
        "This replica is not the active one; nothing was written",
        "Send the same request again, through the balanced endpoint.",
        Retry.SAME,
    )
    SERVICE_PAUSED = (
        503,
        "Operators have paused the service of this notary; nothing was written",
        "Send the same request again after Retry-After; it is answered once operators resume service.",
        Retry.SAME,
    )
    OVERLOADED = (
        503,
        "The notary has as many requests in flight as it takes; nothing was written",
        "Send the same request again after Retry-After.",
        Retry.SAME,
    )
    USER_OVERLOADED = (
        429,
        "This user has as many submissions queued as one user may; nothing was written",
        "Send the same request again after Retry-After; other users are served meanwhile.",
        Retry.SAME,
    )
    OUTCOME_UNKNOWN = (
        503,
        "The replica stopped before it knew the outcome",
        "Send the same request again with the same ids: it cannot be notarised twice.",
        Retry.SAME,
    )
    INTERNAL = (
        500,
        "The replica met an error of its own",
        "Send the same request again with the same ids; if it persists, tell the operator the answer's request_id.",
        Retry.SAME,
    )
    ANSWER_UNREADABLE = (
        0,
        "What came back is no answer of this API, or one with a code that this release does not know",
        "Check what stands at the endpoint, and that client and notary are of releases that go together.",
        Retry.SAME,
    )
    RECEIPT_INVALID = (
        0,
        "An answer's receipt does not verify by the notary's key",
        "Do not act on the answer. Compare the key with the one that the notary published, and tell its operator.",
    )
    LEDGER_CHANGED = (
        0,
        "The offset that a reader kept is of another ledger",
        "Compare the endpoint with the one that the offset was read from, and the reader's filter and rights with "
        "those of that time. For a new ledger, begin at offset 0 with an empty store.",
    )
    # Operators: configuration and start-up.
    CONFIG_INVALID = (
        0,
        "The configuration is not usable",
        "Correct the setting, argument or file that is named, and repeat; docs/settings.md has all settings, --help "
        "all arguments.",
        *_A_PERSON,
    )
    NOT_POSSIBLE_NOW = (
        0,
        "The command cannot be carried out in the present state",
        "Do what the line above says, then repeat the command; `notary status` shows the present state.",
    )
    REPLICA_UNREACHABLE = (
        0,
        "The replica's admin listener does not answer from here",
        "Run the command on the replica's own machine while the replica runs; `notary status` shows where each one is.",
    )
    KEY_UNSAFE = (
        0,
        "A file with a key or a password can be read by others",
        "chmod 600 the file. If others may have read it, replace what is in it; see runbooks/key-rotation.md.",
        *_A_PERSON,
    )
    TRUST_UNSAFE = (
        0,
        "A file that says whose signatures count can be written by others",
        "Compare its content with what parties, issuer or operators gave you: others may have added a key, or taken a "
        "revoked token out. Then chmod go-w the file.",
        *_A_PERSON,
    )
    PLAINTEXT_EXPOSED = (
        0,
        "A connection would leave this machine unprotected",
        "Configure TLS for what is named, or move it to a loopback address; see docs/security.md.",
        *_A_PERSON,
    )
    API_OPEN = (
        0,
        "Everybody on the network could read the ledger: the API asks for no token",
        "Say in [api.tokens] which tokens callers need. If all who reach the API may read everything, and submit what "
        'a party signed, write tokens = "none" under [api]; see docs/security.md.',
        *_A_PERSON,
    )
    SIGNER_UNAVAILABLE = (
        0,
        "The token or service that holds the notary's key does not sign",
        "Check that the token or service is up, can be reached and trusted, and that the key is enabled: notary doctor."
        " A replica that can sign takes over.",
        Retry.SAME,
    )
    SIGNER_ACCESS_DENIED = (
        0,
        "The service that holds the notary's key got no credentials, or none that may use the key",
        "Renew the credentials (they are missing, expired, or another account's), or give them the right to show and "
        "to use the key; docs/security.md says where they are looked for. Those in the environment are read at a start "
        "only: restart the replica. A replica that can sign takes over.",
        Retry.SAME,
    )
    TOPIC_UNSAFE = (
        0,
        "The request log breaks the contract that safety rests on",
        "Correct what is named; see runbooks/topic.md, for a log on Postgres runbooks/postgres-log.md, on log nodes "
        "runbooks/log-node-loss.md.",
        *_A_PERSON,
    )
    LOG_MISSING = (
        0,
        "There is no request log: it was not created yet, or it was deleted",
        "A new notary creates it: notary topic create, or notary log create. One that was in use must get its records "
        "back; see runbooks/topic-loss.md.",
        *_A_PERSON,
    )
    LOG_WITHOUT_GENESIS = (
        0,
        "The request log does not begin with a genesis, so it is no ledger",
        "A new notary writes it before its replicas start: notary log create, which names the first officers. A log "
        "with other records first is none of this release: look at its first record with notary log show.",
        *_A_PERSON,
    )
    LOG_MISMATCH = (
        0,
        "The request log is not the one that this position was read from",
        "Do not serve. Find out which of the log, the index and the database is wrong; see runbooks/topic.md.",
        *_A_PERSON,
    )
    LOG_TRUNCATED = (
        0,
        "The request log has lost records: its first ones, or its newest, which were read or published before",
        "Do not serve, and write nothing to the topic. Bring the lost records back, from a broker's disk or from the "
        "archive; see runbooks/topic-loss.md.",
        *_A_PERSON,
    )
    MARK_FOREIGN = (
        0,
        "A replica tells a mark that is not of this log: its disk is damaged, or another notary's",
        "The others serve on. Stop that replica, and find out where its disk comes from, such as a clone. If it is its "
        "own, its index is wrong, or the log lost records with the barrier before them; see runbooks/topic.md.",
    )
    SEEN_FILE_DAMAGED = (
        0,
        "Both slots of a replica's seen file are damaged, so its own marks are lost",
        "Nothing, if one replica has it: the marks of the others and of the database count. Look at that disk.",
    )
    SEEN_FILE_UNWRITABLE = (
        0,
        "A replica's seen file cannot be written, so its mark on the disk does not move",
        "Give the disk room, or replace it. Answers go on where the request log survives a power cut.",
    )
    LOG_PAYLOAD_MISSING = (
        0,
        "The request log points to a payload that its second topic does not have any more, or has with other content",
        "Do not serve, and write nothing to either topic. Bring the payloads back from a broker's disk, or restore the "
        "log from the archive, which has whole records; see runbooks/topic-loss.md.",
        *_A_PERSON,
    )
    FORMAT_UNKNOWN = (
        0,
        "The log is written in a record format or under rules that this release does not know",
        "Run a release that knows the format in force; see docs/upgrades.md.",
        *_A_PERSON,
    )
    INDEX_UNREADABLE = (
        0,
        "The committed-state index cannot be read or is corrupt",
        "If the line above names a cause beside the index, such as a full disk or a missing right, correct that first. "
        "Then start the replica again: it moves a damaged index aside by itself, and rebuilds the index from the log.",
    )
    INDEX_DAMAGED_AGAIN = (
        0,
        "The index was found damaged again, and was not moved aside once more",
        "Look at this machine's disk and memory. Then delete the index.corrupt-* folders, and start the replica: "
        "it rebuilds the index from the log; see runbooks/index-loss.md.",
        *_A_PERSON,
    )
    INDEX_MISMATCH = (
        0,
        "The committed-state index and the request log disagree, though both can be read",
        "Do not serve from this index. Find out which of the two is wrong before it is rebuilt from the log: "
        "notary index diff, against the archive and another replica; see runbooks/index-mismatch.md.",
        *_A_PERSON,
    )
    STORE_MISMATCH = (
        0,
        "The participant database does not belong to this notary or release",
        "Do what the line above says, if it says so. Where tables are missing or older than this release: notary store "
        "migrate. Else point the configuration at the right database, or run the release that fits its schema.",
        *_A_PERSON,
    )
    DATABASE_SUPERSEDED = (
        0,
        "The participant database is an older line of history than the one that granted the epoch in force",
        "Nothing was written. Fence this primary: another one was promoted. Where it was restored on purpose, promote "
        "it past that timeline first; see runbooks/database-failover.md.",
        Retry.SAME,
    )
    REPLICA_NAME_TAKEN = (
        0,
        "Another replica of this name uses the participant database",
        "Give each replica a name of its own ([[replicas]]), or stop the other one; notary doctor names its session.",
        Retry.SAME,
    )
    LEDGERS_SHARE_DATABASE = (
        0,
        "The participant database has the tables of two ledgers",
        "Give each ledger a database of its own: advisory locks are kept per database. Move or drop the other schema.",
        *_A_PERSON,
    )
    STORE_UNAVAILABLE = (
        0,
        "The participant database did not answer in time",
        "Check the database, then repeat the command. Replicas go on by themselves once it answers.",
        Retry.SAME,
    )
    LOG_MEMBERS_REFUSED = (
        0,
        "The members of the replicated log were not changed",
        "Do what the line above says; `notary log members` shows who belongs and who answers.",
    )
    LOG_UNAVAILABLE = (
        0,
        "The request log did not answer in time",
        "Check what the log is kept on, brokers, database or log nodes, then repeat the command. Replicas go on by "
        "themselves once it answers.",
        Retry.SAME,
    )
    # The local cluster.
    LOCAL_SERVER_FAILED = (
        0,
        "A server of the local cluster did not start, or ended by itself",
        "Correct what the lines above or the end of its log name, and start the cluster again.",
    )
    LOCAL_SOFTWARE_MISSING = (
        0,
        "Software that the local cluster runs is not installed",
        "Install what the line above names; in a clone of the repository `make setup` does.",
    )
    PLACE_UNKNOWN = (
        0,
        "A file or folder is named by a URL that this command does not read from or write to",
        "Nothing was written. Name a local path, or for an archive, a shipped checkpoint or a report"
        " s3a://BUCKET/PREFIX or hdfs://NAMENODE:PORT/PREFIX;"
        " a local folder whose name looks like a URL takes its absolute path.",
        *_A_PERSON,
    )
    PLACE_UNSAFE = (
        0,
        "The store of files overwrites an object that was to be created only if there was none",
        "Name a store that honours `If-None-Match: *`; the line above has what was overwritten, with its own bytes.",
        *_A_PERSON,
    )
    PLACE_UNAVAILABLE = (
        0,
        "The store of files did not answer, or it refused for the moment",
        "Run the same command again: nothing is left half done. Check address and network if it goes on.",
        Retry.SAME,
    )
    PLACE_ACCESS_DENIED = (
        0,
        "The store of files refused this account or its credentials, or they have no right to do this",
        "Check who runs the command, the credentials in the environment, and what they may do: list, read and create,"
        " for a report remove as well.",
        *_A_PERSON,
    )
    # The operators' trail.
    TRAIL_BROKEN = (
        0,
        "The operators' trail is not what it was, or has entries that nobody known signed",
        "Keep the trail as it is, and every export of it. Find out who could write where it is kept; see"
        " docs/trail.md.",
    )
    TRAIL_UNAVAILABLE = (
        0,
        "The operators' trail cannot be written or read just now",
        "Repeat the command. Where the line above says that the act was not done, it needs its entry first; see"
        " docs/trail.md.",
        Retry.SAME,
    )
    REASON_MISSING = (
        0,
        "This notary's operators say why; nothing was done",
        "Repeat the command with --reason TEXT.",
    )
    NOT_AN_OPERATOR = (
        0,
        "This account may not watch or steer a replica; nothing was done",
        "Run the command as the account that the replica runs as, or as a member of admin.group.",
    )
    NOT_IN_TRAIL = (
        0,
        "The operators' trail has no beginning of this act, made just now; nothing was done",
        "Use the command, such as `notary switchover`: it writes the entry first. Clocks may differ by five minutes.",
    )
    FOUR_EYES_NEEDED = (
        0,
        "A second operator must confirm this act; nothing was done",
        "Run the same command with --propose; another operator repeats it with --confirm and the number that it"
        " prints.",
    )
    FOUR_EYES_SAME_PERSON = (
        0,
        "An operator cannot confirm a proposal of their own; nothing was done",
        "Let another operator, with a key of their own, run the command with --confirm.",
    )
    PROPOSAL_INVALID = (
        0,
        "The proposal does not permit this act; nothing was done",
        "Propose it again with --propose and exactly the arguments of the act; it counts once, and for"
        " operators.confirm_within_s.",
    )
    # The archive.
    ARCHIVE_DAMAGED = (
        0,
        "The archive is not whole, or not what its manifest and the database vouch for",
        "Keep it as it is: `notary archive verify` names the first bad offset. Take what is good from the second site.",
    )
    ARCHIVE_MISMATCH = (
        0,
        "The archive does not belong with the request log, copy or checkpoint that it is used with",
        "Name what belongs together; after a restore, adopt the restored topic first. See runbooks/topic-loss.md.",
    )
    ARCHIVE_CONTENDED = (
        0,
        "Another archiver writes to this archive",
        "Stop one of the two, then run the command again: it goes on where the archive ends.",
        Retry.SAME,
    )
    # The tables' catalogue.
    CATALOGUE_NAME_TAKEN = (
        0,
        "The catalogue has another table under the name of one of ours",
        "Nothing was registered, and the tables themselves are in place. Name another tables.catalogue.schema_name, or"
        " drop that table from the catalogue if it is an old registration of ours; see runbooks/tables.md.",
    )
    CATALOGUE_ACCESS_DENIED = (
        0,
        "The catalogue does not let this user register tables",
        "Give the user of the job, HADOOP_USER_NAME or the process's own, the right to make tables in"
        " tables.catalogue.schema_name, or make that schema for it. Tables are appended to meanwhile.",
    )
    CATALOGUE_REFUSED = (
        0,
        "The catalogue refuses to register a table, or what answers is no such catalogue",
        "Do what the line above says: it is the catalogue's own answer. Tables are appended to meanwhile.",
    )
    CATALOGUE_UNAVAILABLE = (
        0,
        "The catalogue did not answer, or it failed",
        "Run the same command again once it answers; with --follow the job tries again by itself. Tables are appended"
        " to meanwhile.",
        Retry.SAME,
    )
    RESTORE_REFUSED = (
        0,
        "The request log cannot be restored, salvaged or adopted safely as asked",
        "Do what the line above says; `notary restore plan` shows all that stands against a restore.",
    )
    LOG_COPY_REFUSED = (
        0,
        "The second site's log is no copy of this one, or somebody else writes to it",
        "Nothing more is copied. Find out who wrote there; if the second site has taken over, this site must not serve."
        " Otherwise delete that log and copy anew; see runbooks/log-copy.md.",
        *_A_PERSON,
    )
    SALVAGE_DAMAGED = (
        0,
        "The file is not a tail salvage that the operator's key signed",
        "Do not use it. Copy it again from where it was made, or make it again; see runbooks/topic-loss.md.",
        *_A_PERSON,
    )
    SALVAGE_SOURCELESS = (
        0,
        "Nothing that survives shows how far the request log went, or what its lost records decided",
        "Name an index of another machine or a checkpoint (--index), or a position that a replica noted (--mark)."
        " Without any, what was answered after the log's end cannot be known; see runbooks/log-cut.md.",
    )
    SALVAGE_MISSING = (
        0,
        "The request log has a lost range, and the salvage that the log names is not here",
        "A replica must not serve: import the very file (notary index salvage). A job takes it from beside the archive,"
        " from a replica here, or with --salvage; see runbooks/topic-loss.md.",
        *_A_PERSON,
    )
    PIPELINE_MISSING = (
        0,
        "The data pipeline is not installed",
        "Install what the line above names, where it says. Here that is the extra, pip install "
        "'replicated-notary[pipeline]', or [connect] for Spark Connect; Spark needs a Java 17 runtime as well.",
        *_A_PERSON,
    )
    PIPELINE_FAILED = (
        0,
        "A job of the data pipeline failed on Spark",
        "Run the same command again: nothing is left half done. NOTARY_SPARK_LOG=ERROR shows all that Spark says.",
        Retry.SAME,
    )
    SPARK_UNAVAILABLE = (
        0,
        "The Spark cluster that --master names does not answer, or has no worker for the job",
        "Nothing was done. Start the cluster's master and workers, or name the right address, and run the command"
        " again; without --master it runs on this machine, as local[3].",
        Retry.SAME,
    )
    PACKAGES_UNAVAILABLE = (
        0,
        "No repository answered from which Spark could fetch the jars of --packages",
        "Nothing was done. Check that a repository of spark.jars.repositories or spark.jars.ivySettings answers, and"
        " run the command again; the pinned jars of `make setup`, without --packages, need none.",
        Retry.SAME,
    )
    HISTORY_INVALID = (
        0,
        "The history cannot be checked, because it is not one",
        "Correct or complete the file; docs/formats.md describes each line.",
    )
