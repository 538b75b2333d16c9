//! The rows: the programs, their loads and the goals.

use serde::Serialize;

use crate::kv::client::Load;

/// A server program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Server {
    Redis,
    Memcached {
        threads: u32,
    },
    /// One worker, a file of 1 KB.
    Nginx {
        /// Whether it keeps the file open (`open_file_cache`) instead of opening it for each
        /// request, which is half of the time of its core.
        open_files: bool,
    },
    Postgres,
    Iperf,
    /// One server in Java, which does not wait for its disk.
    ZooKeeper,
    /// One of two ranks of gloo.
    Gloo {
        floats: usize,
    },
    /// A program of the bench: answers each request of [`RPC_BYTES`] with as many bytes.
    Rpc,
    /// A program of the bench: accepts connections and sends nothing.
    Silent,
}

/// The load of a client.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) enum Client {
    /// redis-benchmark.
    Redis(Load),
    /// A program of the bench: one request of each connection in flight, nine `get` for each `set`,
    /// values of 64 bytes.
    Memcached {
        connections: usize,
    },
    Wrk {
        connections: usize,
    },
    /// Select-only.
    Pgbench {
        clients: usize,
    },
    /// One stream, to the server or from it.
    Iperf {
        reverse: bool,
    },
    /// Locks and unlocks by the recipe of kazoo, one after the other: five requests.
    Lock,
    /// The other rank of gloo: one all-reduce after the other.
    AllReduce {
        floats: usize,
    },
    /// A program of the bench: an open loop of `rate` requests a second over all connections.
    Rpc {
        connections: usize,
        rate: u64,
    },
}

/// Debian's ZooKeeper, and its client in Python.
pub(super) const ZOOKEEPER: &str = "/usr/share/java/zookeeper.jar";
pub(super) const PYTHON: &str = "/usr/bin/python3";
const KAZOO: &str = "/usr/lib/python3/dist-packages/kazoo/__init__.py";

/// Bytes of a request of the bench's own client, and of its reply.
pub(super) const RPC_BYTES: usize = 64;

/// The subject of a goal. More is always better: latencies count as how many times lower they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) enum Figure {
    Rate,
    Median,
    P99,
    Tail,
    /// Processor time of the whole machine for each operation.
    Cpu,
}

impl Figure {
    pub(super) fn name(self) -> &'static str {
        match self {
            Figure::Rate => "rate",
            Figure::Median => "p50",
            Figure::P99 => "p99",
            Figure::Tail => "p99.9",
            Figure::Cpu => "CPU",
        }
    }
}

/// A goal: how many times better than Linux the subject has to be.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Goal {
    pub figure: Figure,
    pub factor: f64,
}

/// A row: one server under one load.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub name: String,
    /// The unit of an operation.
    pub unit: &'static str,
    #[serde(skip)]
    pub server: Server,
    #[serde(skip)]
    pub client: Client,
    /// The goals with both ends under Sietch. With one end, and without another goal, it must not
    /// be slower.
    pub goals: Vec<Goal>,
}

impl Row {
    /// The programs that it needs.
    pub(super) fn needs(&self) -> &'static [&'static str] {
        match self.server {
            Server::Redis => &["taskset", "redis-server", "redis-benchmark"],
            Server::Memcached { .. } => &["taskset", "memcached"],
            Server::Nginx { .. } => &["taskset", "nginx", "wrk"],
            Server::Postgres => &["taskset", "setpriv", "pg_config", "pgbench", "pg_isready"],
            Server::Iperf => &["taskset", "iperf3"],
            Server::ZooKeeper => &["taskset", "java", ZOOKEEPER, PYTHON, KAZOO],
            Server::Gloo { .. } => &["taskset", "g++", "/usr/include/gloo/allreduce.h"],
            Server::Rpc | Server::Silent => &["taskset"],
        }
    }
}

/// Requests a second that 400 clients send together: about 1, 5, 20 and 80 percent of the capacity
/// of one core over kernel sockets.
const RPC_RATES: [u64; 4] = [1_000, 5_000, 20_000, 80_000];

/// The most that a moderate load may lose to the kernel: one part in twenty.
const NO_WORSE: f64 = 0.95;

/// Clients of the row with many connections.
const MANY: usize = 400;

/// All rows; rows with the same server are adjacent.
pub(super) fn all() -> Vec<Row> {
    let goal = |figure, factor| Goal { figure, factor };
    let rate = |factor| vec![goal(Figure::Rate, factor)];
    let mut rows = Vec::new();
    let mut add = |name: String, unit, server, client, goals| {
        rows.push(Row { name, unit, server, client, goals });
    };
    // Keys are written before they are read.
    for command in ["set", "get"] {
        for connections in [1, 50] {
            for pipeline in [1, 16] {
                let load = Load { command, connections, pipeline, value: 64 };
                let goals = match (command, connections, pipeline) {
                    ("get", 1, 1) => vec![goal(Figure::Median, 4.0), goal(Figure::Rate, 1.0)],
                    ("get", 50, 1) => rate(4.0),
                    _ => rate(1.0),
                };
                let name = format!("redis {} c{connections} P{pipeline}", command.to_uppercase());
                add(name, "req", Server::Redis, Client::Redis(load), goals);
            }
        }
    }
    for threads in [1, 4] {
        let name = format!("memcached {threads} thread{} c50", if threads == 1 { "" } else { "s" });
        add(name, "req", Server::Memcached { threads }, Client::Memcached { connections: 50 }, rate(1.0));
    }
    for (name, open_files) in [("nginx 1 KB c50", false), ("nginx 1 KB open_file_cache c50", true)] {
        let server = Server::Nginx { open_files };
        add(name.into(), "req", server, Client::Wrk { connections: 50 }, rate(3.0));
    }
    for clients in [1, 8] {
        add(
            format!("pgbench -S c{clients}"),
            "query",
            Server::Postgres,
            Client::Pgbench { clients },
            rate(1.0),
        );
    }
    for (name, reverse) in [("iperf3", false), ("iperf3 -R", true)] {
        add(name.into(), "MB", Server::Iperf, Client::Iperf { reverse }, rate(1.5));
    }
    add("zookeeper lock".into(), "lock", Server::ZooKeeper, Client::Lock, rate(1.0));
    for (size, floats) in [("1 KB", 256), ("1 MB", 1 << 18)] {
        let name = format!("gloo all-reduce {size}");
        add(name, "sum", Server::Gloo { floats }, Client::AllReduce { floats }, rate(1.0));
    }
    for rate in RPC_RATES {
        let client = Client::Rpc { connections: MANY, rate };
        let figures = [Figure::Median, Figure::P99, Figure::Tail, Figure::Cpu];
        let goals = figures.map(|figure| goal(figure, NO_WORSE)).to_vec();
        add(format!("rpc 64 B c{MANY} at {rate}/s"), "req", Server::Rpc, client, goals);
    }
    rows
}
