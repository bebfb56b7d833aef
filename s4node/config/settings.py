"""The settings: every key of the configuration, in the order of the documentation.

Rules
- A key exists because it is declared here; any other key is a mistake. The code, the documentation
  and ``default.s4.comm.properties`` know nothing else.
- A key in milliseconds gives a ``float`` of seconds, as trio's clocks take. The constants have the
  keys' own names (``WATCHDOG_MS``).
"""

from __future__ import annotations

from typing import Any

from s4node.config import kinds
from s4node.config.key import ClientOption, ConfigKey, Pattern, Setting, StageKey

# A key is one block: section, name, value and kind, then its documentation.
# fmt: off

_CLUSTER = "Clusters and streams"

CLUSTER_NAME = Setting(
    _CLUSTER, "s4.cluster.name", "default", kinds.NAME,
    "The cluster that this node belongs to. Other clusters list it among their consumers.",
    belongs_to="process",
)
CLUSTER_PARTITIONS = Setting(
    _CLUSTER, "s4.cluster.partitions", "1", kinds.whole(1, 4096),
    "The number of partition tasks that share the keys of an app. Fixed when the app first starts. "
    "More tasks can spread over more nodes, and each costs memory and a commit of its own.",
)
CLUSTER_ADDRESS = Pattern(
    _CLUSTER, "s4.cluster.<cluster>.address", "tcp://127.0.0.1:12001", kinds.address(1),
    "The address of a node of another cluster. One line for each cluster that consumes an output "
    "stream of this one.",
    "s4.cluster.east.address",
)
STREAM_CONSUMERS = Pattern(
    _CLUSTER, "s4.stream.<stream>.consumers", "east, west", kinds.NAMES,
    "The clusters that consume an output stream. Each gets every event.",
    "s4.stream.clicks.consumers",
)
STREAM_GRADE = Pattern(
    _CLUSTER, "s4.stream.<stream>.grade", "durable", kinds.choice("fast", "durable"),
    "The grade of an input stream that producers send to. With durable each event counts once, "
    "whatever is killed: producers keep it until it is committed. With fast they keep it until it "
    "is processed, and a crash may lose or repeat it. The default is durable if the app has "
    "stores, windows, timers, a replayable input, or another durable stream.",
    "s4.stream.clicks.grade",
)
HASHER = Setting(
    _CLUSTER, "s4.hasher", "crc32m", kinds.HASHER,
    "The hash of keys that chooses partitions: crc32m, s4 (that of Apache S4), kafka (the murmur2 "
    "of Kafka's producers, modulo the partitions), or your own function from a key to a whole "
    "number. Producers that route by themselves must use the same one.",
)

CLUSTER_GATHER_TIMEOUT = Setting(
    _CLUSTER, "s4.cluster.gatherTimeout", "10000", kinds.milliseconds(0),
    "How long the first containers of an app wait for the other expected containers before they "
    "share the partitions. A container that joins later is a spare.",
)

CLUSTER_STAY = Setting(
    _CLUSTER, "s4.cluster.stay", "0", kinds.milliseconds(0),
    "How long the partitions of a container that has ended stay reserved for it, without being "
    "processed. If it returns under its node's name within this time, as at a restart, it gets "
    "them back. With 0 other containers take them at once.",
)

NODE_ZONE = Setting(
    _CLUSTER, "s4.node.zone", "", kinds.TEXT,
    "The zone of the node: a data centre, a rack, or any other group of machines that fails as a "
    "whole. The standby of a task (s4.state.standby) is in another zone than its owner, if a "
    "member of the app is.",
    belongs_to="node",
)

_COORDINATION = "Coordination: how nodes find each other"

COORDINATION = Setting(
    _COORDINATION, "s4.coordination", "", kinds.ZOOKEEPER,
    "The ZooKeeper through which nodes of several machines find each other; one root may hold "
    "several clusters. It needs pip install 's4node[zookeeper]', and s4.state.url for the packages "
    "of apps. If this is empty, the nodes of one machine find each other in a folder.",
    belongs_to="process",
)
COORDINATION_CREDENTIALS = Setting(
    _COORDINATION, "s4.coordination.credentials", "", kinds.FOLDER,
    "A property file with the credentials for ZooKeeper, on each node. username and password: only "
    "programs with them can read and write the entries. mechanism, service and principal are for "
    "SASL. ca, certificate and key name PEM files, for TLS.",
    belongs_to="process",
)
COORDINATION_FOLDER = Setting(
    _COORDINATION, "s4.coordination.folder", "~/.s4node", kinds.FOLDER,
    "The folder of the nodes of this machine; they create it. It must be on a disk of this "
    "machine, and yours alone. Without s4.coordination, nodes with one folder belong together.",
    belongs_to="process",
)
SESSION_TIMEOUT = Setting(
    _COORDINATION, "s4.session.timeout", "10000", kinds.milliseconds(1000),
    "If a process sends no heartbeat for this long, its partitions move to others. This is for "
    "processes that hang or are stopped, and for machines that are lost. The death of a process is "
    "detected at once. ZooKeeper grants 2 to 20 of its ticks.",
)

_LISTENER = "Listener: connections from peers"

LISTENER_ADDRESS = Setting(
    _LISTENER, "s4.listener.address", "tcp://127.0.0.1:12000", kinds.address(0),
    "The address on which the node listens. Only programs on the same machine reach the default. "
    "tls+tcp://host:port is for peers with certificates (s4.tls.certificate). Without TLS, an "
    "address that other machines reach needs s4.access = open. Port 0 means any free port.",
    belongs_to="node",
)
LISTENER_ADVERTISE = Setting(
    _LISTENER, "s4.listener.advertise", "", kinds.HOST,
    "The host by which others reach this node, such as its name in DNS. The default is the host of "
    "s4.listener.address. Set it if the node listens on all interfaces (0.0.0.0), because others "
    "cannot connect to that. With :port, others reach the node itself at that port. Its containers "
    "keep their own ports.",
    belongs_to="node",
)
LISTENER_PORTS = Setting(
    _LISTENER, "s4.listener.ports", "", kinds.PORTS,
    "The ports that the containers of a node may listen on, such as 12001-12099, for firewalls and "
    "published ports. A new version of an app starts beside the old one, so each app needs two "
    "ports. Empty: any free port.",
    belongs_to="node",
)
ACCESS = Setting(
    _LISTENER, "s4.access", "certificates", kinds.choice("certificates", "open"),
    "Who may connect from other machines: peers with certificates, or, with open, any program. An "
    "open node believes each name that a peer gives itself. So any peer may read and delete "
    "everything, and act as a producer, a member or a task. Nothing is encrypted.",
    belongs_to="process",
)
TLS_CERTIFICATE = Setting(
    _LISTENER, "s4.tls.certificate", "", kinds.TEXT,
    "The file (PEM) with this process's certificate. It names the process as a URI "
    "s4://CLUSTER/ROLE/NAME. s4 certs makes the certificates of a development cluster. New "
    "connections use a changed file.",
    belongs_to="process",
)
TLS_KEY = Setting(
    _LISTENER, "s4.tls.key", "", kinds.TEXT,
    "The file (PEM) with the key of s4.tls.certificate, without a password. Only the node's user "
    "should be able to read it.",
    belongs_to="process",
)
TLS_AUTHORITY = Setting(
    _LISTENER, "s4.tls.authority", "", kinds.TEXT,
    "The file (PEM) with the certificate of the authority that signs the certificates of all "
    "peers.",
    belongs_to="process",
)
TLS_REVOKED = Setting(
    _LISTENER, "s4.tls.revoked", "", kinds.TEXT,
    "A file with the serial numbers of certificates that are no longer trusted, one in each line, "
    "in hexadecimal digits. Connected peers with such a certificate are disconnected.",
    belongs_to="process",
)
LISTENER_MAX_ENVELOPE_BYTES = Setting(
    _LISTENER, "s4.listener.maxEnvelopeBytes", "16777216", kinds.size(1024, 2**31 - 1),
    "The longest envelope that is accepted. A longer one closes its connection. This bounds the "
    "memory that one peer can take.",
    belongs_to="node",
)
LISTENER_MAX_FRAME_BYTES = Setting(
    _LISTENER, "s4.listener.maxFrameBytes", "1048576", kinds.size(1024, 2**31 - 1),
    "The longest frame that is accepted. A longer one is refused with an answer to its producer, "
    "and the connection stays open.",
    belongs_to="node",
)
LISTENER_MAX_CONNECTIONS = Setting(
    _LISTENER, "s4.listener.maxConnections", "1024", kinds.whole(1),
    "The most peers that may be connected at a time. Each takes a file descriptor. One address may "
    "have half of them, but at least 512. When the limit is reached, the node closes a connection "
    "that has sent nothing, or else the one that has been idle longest (at least one second). If "
    "none is idle, it refuses the new one.",
    belongs_to="node",
)
LISTENER_PATIENCE = Setting(
    _LISTENER, "s4.listener.patience", "30000", kinds.milliseconds(1),
    "The node ends a connection if for this long its peer sends no first message, does not finish "
    "a message, or does not read what the node has for it. The peer may connect again.",
    belongs_to="node",
)

_QUEUES = "Queues: their sizes count events"

_STAGES = ("deserializer", "stream", "sender", "remoteSender")

STAGE_EXECUTOR = StageKey(
    _QUEUES, "s4.<stage>.executor", "shed", kinds.EXECUTOR,
    "What happens when a stage is full. block makes senders wait. shed drops the newest events. "
    "throttle lets only maxRate leave, and drops the newest events that producers send to a full "
    "queue. package.module:Class is your own executor. The stages are deserializer (undecoded "
    "frames of one input stream in a container), stream (the events of one stream in one "
    "partition), sender (those of one stream that leave for other nodes of the cluster) and "
    "remoteSender (those of one output stream that leave for another cluster).",
    dict(zip(_STAGES, ("block", "block", "throttle", "block"), strict=True)),
)
STAGE_SIZE = StageKey(
    _QUEUES, "s4.<stage>.workQueueSize", "5000", kinds.whole(1),
    "The events that a stage holds. It may exceed this by one frame, or by what a step of the app "
    "or a source puts at once. The size bounds the credit of producers. A larger queue absorbs "
    "longer bursts, at the cost of memory and latency.",
    dict(zip(_STAGES, ("100000", "10000", "10000", "10000"), strict=True)),
)
STAGE_BYTES = StageKey(
    _QUEUES, "s4.<stage>.workQueueBytes", "1048576", kinds.size(1024, 2**53),
    "The bytes that a stage holds. This bounds the memory that overload can take.",
    dict(zip(_STAGES, ("67108864", "16777216", "67108864", "67108864"), strict=True)),
)
STAGE_MAX_RATE = StageKey(
    _QUEUES, "s4.<stage>.maxRate", "1000", kinds.whole(1),
    "The events per second that leave a stage if its executor throttles.",
    dict.fromkeys(_STAGES, "200000"),
)
STREAM_PARALLELISM = StageKey(
    _QUEUES, "s4.stream.parallelism", "4", kinds.whole(0, 1024),
    "The number of handlers of a keyed stream that may run at a time in a partition. Events of one "
    "key stay in order. With 0 the app's set_parallelism() decides, whose default is 1.",
    {"stream": "0"},
)
SENDER_MAX_FRAME_BYTES = Setting(
    _QUEUES, "s4.sender.maxFrameBytes", "262144", kinds.size(1024, 2**31 - 1),
    "The length at which the sender closes a frame and starts the next. Keep it below "
    "s4.listener.maxFrameBytes of the receiving nodes.",
)

_COMM = "Connections"

COMM_TIMEOUT = Setting(
    _COMM, "s4.comm.timeout", "1000", kinds.milliseconds(1),
    "The longest time for connecting to a peer, including the handshake. A short time detects a "
    "dead peer early. A long one suits slow networks.",
)
PRODUCER_EXPIRY = Setting(
    _COMM, "s4.producer.expiry", "3600000", kinds.milliseconds(1),
    "A program without a producer id of its own is forgotten after it has been away for this long, "
    "while the node runs. What it resends after that counts again, so keep this above the longest "
    "break of a connection. A task, or a program with an id of its own, does not expire if the "
    "node saves which of its events are settled.",
)

_APP = "The app"

ADAPTER_OUTPUT_STREAM = Setting(
    _APP, "s4.adapter.output.stream", "", kinds.TEXT,
    "The remote stream that an AdapterApp feeds. Empty for other apps.",
)
APP_PARAMETER = Pattern(
    _APP, "s4.app.<parameter>", "42", kinds.TEXT,
    "A parameter of the app: a text in app.parameters, under its name without s4.app.",
    "s4.app.threshold",
)

_TASKS = "Tasks: which there are, and what they read"

BROADCAST_INPUTS = Setting(
    _TASKS, "task.broadcast.inputs", "", kinds.PARTITIONS,
    "Partitions that every task reads, each with its own progress, such as log.rules#[0-1], "
    "log.a.b#2. The first dot ends the system's name. An input that is listed here is broadcast, "
    "even if it is also an input otherwise.",
)
GROUPER = Setting(
    _TASKS, "job.systemstreampartition.grouper.factory", "by-partition",
    kinds.own("by-partition", "by-ssp"),
    "How partitions are grouped into tasks. by-partition makes one task of partition 3 of all "
    "inputs. by-ssp makes one task of each partition of each input. Groupers other than "
    "by-partition are for tasks that read only replayable inputs without keys. It cannot change "
    "once there is progress.",
)
CONTAINER_COUNT = Setting(
    _TASKS, "job.container.count", "0", kinds.whole(0),
    "The number of containers that share the tasks, at most one per task. s4 run starts that many. "
    "In a cluster further containers are spares. With 0, s4 run is one process, and a cluster uses "
    "all containers.",
)
CHOOSER = Setting(
    _TASKS, "task.chooser.class", "round-robin", kinds.own("round-robin"),
    "The chooser among a task's inputs of equal priority.",
)
BATCH_SIZE = Setting(
    _TASKS, "task.consumer.batch.size", "0", kinds.whole(0),
    "The number of events of an input that a task processes before another input has its turn. 0 "
    "means one step: s4.step.maxEvents events or 5 ms, or what has arrived.",
)
STREAM_PRIORITY = Pattern(
    _TASKS, "streams.<stream>.samza.priority", "1", kinds.whole(0),
    "The priority of an input. The default is 0. While an input of higher priority has events, the "
    "others wait. Its events wait for at most one step of another input: s4.step.maxEvents events "
    "or 5 ms. An input that bootstraps is above all others.",
    "streams.clicks.samza.priority",
)
STREAM_BOOTSTRAP = Pattern(
    _TASKS, "streams.<stream>.samza.bootstrap", "true", kinds.SWITCH,
    "A task reads this input, up to its newest event at the start, before it processes any other.",
    "streams.rules.samza.bootstrap",
)

_TASK_RUN = "Tasks: how they run"

TASK_MAX_CONCURRENCY = Setting(
    _TASK_RUN, "task.max.concurrency", "1", kinds.whole(1, 100_000),
    "The events of one task that may be in flight: begun, and not yet done. With 1 each event is "
    "done before the next begins. More overlaps the waiting of tasks; see task.order.",
)
TASK_ORDER = Setting(
    _TASK_RUN, "task.order", "arrival", kinds.choice("arrival", "key"),
    "The order of a task's events if several may be in flight. With arrival they begin in the "
    "order of arrival and overlap. With key, events of one key never overlap. Events without a key "
    "count as one key.",
)
THREAD_POOL_SIZE = Setting(
    _TASK_RUN, "job.container.thread.pool.size", "0", kinds.whole(0, 1024),
    "The number of threads of a container that run plain tasks (process, window and timers). Use "
    "it for tasks that wait for something without being async. 0 runs them on the event loop, "
    "which costs least.",
)
TASK_WINDOW_MS = Setting(
    _TASK_RUN, "task.window.ms", "0", kinds.milliseconds(0),
    "The interval at which a task's window() is called, while none of its events is in flight. 0 "
    "means never.",
)
TASK_COMMIT_MS = Setting(
    _TASK_RUN, "task.commit.ms", "60000", kinds.milliseconds(0),
    "The longest time between commits of a task that has changed. A commit begins earlier if "
    "others wait for it: at once for producers that flush, and for tasks, logs and other apps that "
    "get its events, and within a second for other producers of durable streams. Such commits take "
    "less than a tenth of the task's time, and those of all tasks of a container less than a "
    "quarter of a process, or a fiftieth while it works at full speed. With 0 a task commits only "
    "if the task or a producer asks for it, if events for others wait, and at the end.",
)
TASK_ASYNC_COMMIT = Setting(
    _TASK_RUN, "task.async.commit", "false", kinds.SWITCH,
    "With true, events of a task may be in flight, and begin, while its progress is taken for a "
    "commit. A commit never covers events that are not done.",
)
TASK_CALLBACK_TIMEOUT_MS = Setting(
    _TASK_RUN, "task.callback.timeout.ms", "0", kinds.milliseconds(0),
    "The longest time for an event of a task that is awaited, runs in a thread, or ends by a "
    "callback, and for an event of PEs whose stream has parallel handlers. An event that takes "
    "longer fails: it stops the container, or s4.stream.<stream>.onError skips it. 0 means no "
    "limit.",
)
TASK_IGNORED_EXCEPTIONS = Setting(
    _TASK_RUN, "task.ignored.exceptions", "", kinds.CLASSES,
    "Exceptions of a task's process, window and timers that are only counted: names of classes, "
    "with or without their module, subclasses included, or * for all.",
)

_INPUTS = "Replayable inputs"

SYSTEM_TYPE = Pattern(
    _INPUTS, "systems.<system>.type", "log", kinds.own("log", "kafka"),
    "Defines a system of this name. log is the log of a node. kafka is a cluster of Kafka. A class "
    "of your own is called with the name and the configuration. The system live, the sockets, "
    "always exists.",
    "systems.archive.type",
)
SYSTEM_ADDRESS = Pattern(
    _INPUTS, "systems.<system>.address", "tcp://127.0.0.1:12000", kinds.TEXT,
    "The address of the system. For a log it is the address of its node, for kafka host:port of "
    "some brokers. The system log needs no address if this process has the log itself.",
    "systems.archive.address",
)
SYSTEM_CONSUMER = ClientOption(
    _INPUTS, "systems.<system>.consumer.<option>", "/etc/ssl/ca.pem", kinds.TEXT,
    "An option of the client that reads from a system. For kafka it is one of librdkafka's. A "
    "secret is in a file, which the option with .file names, as sasl.password.file does.",
    "systems.orders.consumer.ssl.ca.location",
)
SYSTEM_PRODUCER = ClientOption(
    _INPUTS, "systems.<system>.producer.<option>", "30000", kinds.TEXT,
    "An option of the client that writes to a system. For kafka it is one of librdkafka's. The "
    "options of connections are those of the consumer, unless they are set here, too.",
    "systems.orders.producer.transaction.timeout.ms",
)
PHYSICAL_NAME = Pattern(
    _INPUTS, "streams.<stream>.samza.physical.name", "shop.orders-v2", kinds.TEXT,
    "The name of the stream in its system, such as a topic of kafka, if it is another one.",
    "streams.orders.samza.physical.name",
)
STREAM_SERDE = Pattern(
    _INPUTS, "streams.<stream>.samza.msg.serde", "json", kinds.own("json", "msgpack", "bytes"),
    "The format of the values of a stream whose records have no types, as in kafka. The default is "
    "json. bytes puts the value into the field value. A class of your own has decode(value), which "
    "returns an event, or a dict of its fields.",
    "streams.orders.samza.msg.serde",
)
RECORD_KEY = Pattern(
    _INPUTS, "streams.<stream>.record.key", "user", kinds.NAME,
    "The field that gets the key of each record, in a stream whose records have keys, as in kafka.",
    "streams.orders.record.key",
)
RECORD_TIME = Pattern(
    _INPUTS, "streams.<stream>.record.time", "at", kinds.NAME,
    "The field that gets the time of each record, as its class has times: seconds since 1970 in a "
    "float, milliseconds in an int, or a datetime.",
    "streams.orders.record.time",
)
RECORD_HEADERS = Pattern(
    _INPUTS, "streams.<stream>.record.headers", "headers", kinds.NAME,
    "The field that gets the headers of each record, as a dict of bytes.",
    "streams.orders.record.headers",
)
TOMBSTONES = Pattern(
    _INPUTS, "streams.<stream>.tombstones", "event", kinds.choice("skip", "event"),
    "What becomes of a record that has a key and no value. skip, the default, leaves it out. event "
    "makes an event with the key and the defaults of its other fields; record.key names the field.",
    "streams.orders.tombstones",
)
ROUTED = Pattern(
    _INPUTS, "streams.<stream>.routed", "true", kinds.SWITCH,
    "The producers of a topic choose partitions by murmur2 of the key, so each task reads the keys "
    "that are its own. It needs s4.hasher = kafka, and a topic with a partition for each task. A "
    "new key in another partition stops the app.",
    "streams.orders.routed",
)
BOUNDED = Pattern(
    _INPUTS, "streams.<stream>.samza.bounded", "true", kinds.SWITCH,
    "Read a stream of kafka to where it ends when its reading begins, and end there.",
    "streams.orders.samza.bounded",
)
TASK_INPUTS = Setting(
    _INPUTS, "task.inputs", "", kinds.NAMES,
    "The inputs, each as system.stream; the first dot ends the system's name. It overrides the app "
    "for the streams that it names. Empty leaves all to the app.",
)
OFFSET_DEFAULT = Pattern(
    _INPUTS, "streams.<stream>.samza.offset.default", "oldest", kinds.OFFSET,
    "Where an input without progress begins: at the oldest event that still exists, at the newest, "
    "or at the upcoming one. The default is upcoming.",
    "streams.clicks.samza.offset.default",
)
SYSTEM_OFFSET_DEFAULT = Pattern(
    _INPUTS, "systems.<system>.samza.offset.default", "oldest", kinds.OFFSET,
    "The same for the other streams of a system.",
    "systems.archive.samza.offset.default",
)
RESET_OFFSET = Pattern(
    _INPUTS, "streams.<stream>.samza.reset.offset", "true", kinds.SWITCH,
    "Begin at samza.offset.default at every start of the app, whatever progress there is. A "
    "container that takes over a task while others run resumes from its progress.",
    "streams.clicks.samza.reset.offset",
)
ON_LOST = Pattern(
    _INPUTS, "streams.<stream>.onLost", "oldest", kinds.choice("fail", "oldest"),
    "What happens if retention has deleted the events to be read next. fail, the default, stops "
    "the container. oldest continues with the oldest event that is left, and the loss is counted "
    "and logged.",
    "streams.clicks.onLost",
)
DROP_UNDECODED = Setting(
    _INPUTS, "task.drop.deserialization.errors", "false", kinds.SWITCH,
    "Drop and count events of an input that do not decode or have no key. Otherwise the first such "
    "event stops the container, unless task.dead.letter.stream is set.",
)
DEAD_LETTERS = Setting(
    _INPUTS, "task.dead.letter.stream", "", kinds.optional(kinds.NAME),
    "The stream of dead letters (events that do not decode, have no key, or are skipped with "
    "onError = dead-letter): one of the app's output streams, or system.stream. Each dead letter "
    "is a GenericEvent with the event's place, reason and bytes. The input continues, but its "
    "progress waits until the dead letter is stored.",
)
ON_ERROR = Pattern(
    _INPUTS, "s4.stream.<stream>.onError", "skip", kinds.choice("fail", "skip", "dead-letter"),
    "What happens to an event on which a handler fails. fail, the default, stops the container. "
    "skip skips the event. dead-letter also stores it in task.dead.letter.stream. A skipped event "
    "leaves neither state nor output, because its task rolls back to its last commit. So the tasks "
    "must have state.",
    "s4.stream.clicks.onError",
)
HELD_BACK = Pattern(
    _INPUTS, "s4.stream.<stream>.heldBack", "1000000", kinds.whole(1),
    "The most events of a stream with order='time' that a task holds back until their turn comes. "
    "The default is 1000000. Beyond that the container stops, and says what the watermark waits "
    "for.",
    "s4.stream.clicks.heldBack",
)
MAX_DRIFT = Pattern(
    _INPUTS, "s4.stream.<stream>.maxDrift", "600", kinds.whole(1),
    "The seconds of event time by which an input may be ahead of the slowest input that leads to "
    "the same windows or timers. The default is 600. An input that is further ahead waits, so a "
    "log that is read again does not fill the memory with windows.",
    "s4.stream.clicks.maxDrift",
)
MONITOR_PARTITIONS = Setting(
    _INPUTS, "job.coordinator.monitor-partition-change.frequency.ms", "300000",
    kinds.milliseconds(10),
    "The interval at which inputs are asked for their number of partitions. A change stops the "
    "container, because it moves keys.",
)

_PROGRESS = "Progress"

STATE_FOLDER = Setting(
    _PROGRESS, "s4.state.folder", "~/.s4node/state", kinds.FOLDER,
    "The folder for the state of tasks, of all clusters and apps of this machine. It must be on a "
    "disk of this machine, and yours alone.",
    belongs_to="machine",
)
STATE_URL = Setting(
    _PROGRESS, "s4.state.url", "", kinds.URL,
    "The URL that state is shipped to, beside s4.state.folder, for nodes that share no folder. It "
    "is any URL that fsspec knows, such as s3://bucket/s4 or file:///mnt/shared. A commit counts "
    "only once it is shipped. A node that takes a task over fetches the state that it lacks from "
    "there.",
)
STATE_ADOPT = Setting(
    _PROGRESS, "s4.state.adopt", "false", kinds.SWITCH,
    "With true, the state in s4.state.folder, or at s4.state.url, becomes the state of the app at "
    "its start, even if the coordination knows another one. Otherwise a container without the "
    "app's state gets no tasks.",
)
STATE_SYNC = Setting(
    _PROGRESS, "s4.state.sync", "normal", kinds.choice("normal", "full"),
    "What a power cut may lose of the state. With full it loses nothing that was committed; every "
    "commit waits for the disk. With normal it may lose the last commits, whose inputs are then "
    "replayed. The death of a process loses nothing with either.",
)
STATE_CHECKPOINT_INTERVAL = Setting(
    _PROGRESS, "s4.state.checkpointInterval", "600000", kinds.milliseconds(0),
    "The interval in milliseconds at which a task makes a checkpoint of its database. The "
    "checkpoint is used if the database is damaged. It shares all files with the database that "
    "have not changed since. 0 means no checkpoints.",
)
STATE_RESTORE_TIME = Setting(
    _PROGRESS, "s4.state.restoreTime", "2000", kinds.milliseconds(1),
    "The time in milliseconds within which the next owner of a task can fetch the commits after a "
    "checkpoint at s4.state.url. If the place is slow, tasks ship checkpoints more often.",
)
STATE_STANDBY = Setting(
    _PROGRESS, "s4.state.standby", "0", kinds.whole(0, 1),
    "With 1, another container of the app follows the state of each task at s4.state.url, and can "
    "take the task over without fetching all of its state. This costs disk space, and one request "
    "a second for each task, or two if the task has committed.",
)
COMMIT_TIMEOUT = Setting(
    _PROGRESS, "task.commit.timeout.ms", "1800000", kinds.milliseconds(0),
    "How long commits of a task may keep failing before the container stops. Until then they are "
    "retried, and nothing is lost. A crash meanwhile replays all events since the last commit.",
)

_STEPS = "Steps, and stopping"

STEP_MAX_EVENTS = Setting(
    _STEPS, "s4.step.maxEvents", "2048", kinds.whole(1),
    "The number of events after which a task yields to timers, sockets and other tasks, if 5 ms "
    "have not passed before. A smaller number is more responsive, a larger one is faster.",
)
WATCHDOG_MS = Setting(
    _STEPS, "s4.watchdog.ms", "100", kinds.milliseconds(0),
    "A step that takes longer than this is logged with its stack, because a handler blocks or "
    "computes too long. One step a minute is logged, with the number of the others. 0 turns the "
    "watchdog off.",
)
TASK_SHUTDOWN_MS = Setting(
    _STEPS, "task.shutdown.ms", "30000", kinds.milliseconds(0),
    "How long a stopping node continues to process events that it has begun, or that no other node "
    "has. The other events go back to their producers. Events that are left after this time are "
    "dropped; durable streams replay them after the start. Events of output streams that no "
    "consumer has acknowledged, and no task has saved, are reported, and the exit status is 1.",
)

_CONTAINERS = "Container processes"

CONTAINER_START_TIMEOUT = Setting(
    _CONTAINERS, "s4.container.startTimeout", "60000", kinds.milliseconds(1),
    "How long a container process may take from its start until it is ready: importing the app, "
    "on_init and on_start. A process that takes longer is killed and restarted. While "
    "s4.state.url does not answer, the time begins anew.",
)
CONTAINER_PULSE_TIMEOUT = Setting(
    _CONTAINERS, "s4.container.pulseTimeout", "10000", kinds.milliseconds(100),
    "A container process that sends no heartbeat for this long is killed and restarted. Keep this "
    "above the longest time that a plain handler computes.",
)
CONTAINER_RESTART_DELAY = Setting(
    _CONTAINERS, "s4.container.restartDelay", "200", kinds.milliseconds(1),
    "The pause before a container process that has crashed is restarted. Each further crash "
    "doubles the pause, up to 150 times this value. After a run of twice that time the pause is "
    "short again.",
)
LIFECYCLE_LISTENERS = Setting(
    _CONTAINERS, "container.lifecycle.listeners", "", kinds.each(kinds.own()),
    "Your classes that are called at each step of a container's start, and at its end, such as "
    "package.module:Class.",
)

_LOG = "The embedded log"

LOG_FOLDER = Setting(
    _LOG, "s4.log.folder", "", kinds.FOLDER,
    "The folder of the embedded log's files. It is created if missing. If empty, this process has "
    "no log. One process uses a folder at a time, and the folder must be on a disk of this "
    "machine.",
    belongs_to="node",
)
LOG_RETENTION_MS = Setting(
    _LOG, "s4.log.retention.ms", "604800000", kinds.milliseconds(0),
    "How long a frame is retained after it was appended. 0 means forever. A stream may have its "
    "own time.",
    belongs_to="node",
)
LOG_QUOTA_BYTES = Setting(
    _LOG, "s4.log.quotaBytes", "0", kinds.size(0, 2**53),
    "The bytes that the files of the log may take, all streams together, except damaged files. "
    "When this is reached, appending waits: nothing is deleted early. 0 means no bound.",
    belongs_to="node",
)
LOG_MAX_PARTITIONS = Setting(
    _LOG, "s4.log.maxPartitions", "512", kinds.whole(1),
    "The most partitions of all streams of the log together. The spools of sinks may have as many "
    "again. Each takes three file descriptors and about 200 KB of memory, and any peer may create "
    "streams.",
    belongs_to="node",
)
LOG_STAGED_EXPIRY = Setting(
    _LOG, "s4.log.staged.expiry", "86400000", kinds.milliseconds(1),
    "The rows that a sink, such as a Spark job, has staged and not published are dropped if "
    "nothing was appended to them for this long, while the node runs. The batch then has to be "
    "written again.",
    belongs_to="node",
)
LOG_SYNC = Setting(
    _LOG, "s4.log.sync", "normal", kinds.choice("none", "normal", "full"),
    "What a power cut may lose. With full it loses nothing that was acknowledged; every commit "
    "waits for the disk. With normal it may lose the last commits, some MiB per partition, and the "
    "files stay sound. With none it may damage the files. The death of a process loses nothing "
    "with any of them.",
    belongs_to="node",
)


_METRICS = "Metrics"

METRICS_REPORTERS = Setting(
    _METRICS, "metrics.reporters", "", kinds.each(kinds.own("console", "jsonl")),
    "The reporters that get the metrics of a container, or of a node with a log. console prints a "
    "table. jsonl writes one JSON object per line for the container and each of its tasks. Empty "
    "means none.",
)
METRICS_INTERVAL = Setting(
    _METRICS, "metrics.reporter.interval", "60000", kinds.milliseconds(1),
    "The time between two reports. A last report comes at the end.",
)
METRICS_FILE = Setting(
    _METRICS, "metrics.reporter.jsonl.file", "", kinds.TEXT,
    "The file that jsonl appends to; containers may share it. Empty means stderr.",
    belongs_to="machine",
)

HTTP_ADDRESS = Setting(
    _METRICS, "s4.http.address", "", kinds.optional(kinds.address(0)),
    "The address at which a node serves HTTP: its page, metrics for Prometheus, events and state "
    "(docs/http.md). Empty means none; s4 run without it serves this machine at the first free "
    "port from 12080. With tls+tcp://host:port it uses s4.tls.certificate. Without TLS, an address "
    "that other machines reach needs s4.access = open.",
    belongs_to="node",
)

HTTP_TOKENS = Setting(
    _METRICS, "s4.http.tokens", "", kinds.TEXT,
    "A file of tokens for programs without a certificate that come over HTTP: in each line a role "
    "(producer, reader or operator), a name, and a token of at least 32 characters. Only the "
    "node's user may read it, and s4.http.address has to be one with TLS. Empty means none.",
    belongs_to="node",
)

_LOGGER = "Logging"

LOGGER_LEVEL = Setting(
    _LOGGER, "s4.logger_level", "info", kinds.choice("debug", "info", "warning", "error"),
    "The least severe level that is logged.",
)
LOGGER_FORMAT = Setting(
    _LOGGER, "s4.logger_format", "auto", kinds.choice("auto", "console", "json"),
    "console is for people, json is one JSON object per line. auto is console if stderr is a "
    "terminal, and json otherwise.",
    belongs_to="node",
)

# fmt: on


KEYS: tuple[ConfigKey[Any], ...] = tuple(
    dict.fromkeys(value for value in list(globals().values()) if isinstance(value, ConfigKey))
)
"""Every key, in the order above; collected from the module, so that none can be missing."""

MEMBERS: tuple[ConfigKey[Any], ...] = tuple(member for key in KEYS for member in key.members)
"""The settings and patterns that the keys stand for: a property of stages stands for several."""

REMOTE_SENDER_SIZE: Setting[int] = STAGE_SIZE.of["remoteSender"].setting

STREAM_PATTERNS: tuple[Pattern[Any], ...] = (
    STREAM_CONSUMERS,
    *(
        of_stage.pattern
        for key in KEYS
        if isinstance(key, StageKey)
        for of_stage in key.of.values()
    ),
)
"""Keys that may name streams that an app does not have, because several apps may share a file."""
