//! Other systems that make a record durable: SQLite, redis-server, libpmemlog.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use rusqlite::Connection;

use super::files::threads;
use super::subject::{BlockResult, Subject, Work, program};
use crate::error::{Error, system};
use crate::kv::client::{self, Load};
use crate::process::{self, Process};

/// Rows after which the table is emptied: the cost of a large table is not measured here.
const ROWS: u32 = 20_000;

/// SQLite in WAL mode with `synchronous=FULL`: one insertion for each transaction. Writers
/// alternate, as SQLite allows one writer.
pub(super) struct Sqlite {
    connection: Mutex<(Connection, u32)>,
}

impl Sqlite {
    /// A new database below `folder`.
    pub(super) fn create(folder: &Path) -> Result<Self, Error> {
        let connection = Connection::open(folder.join("sqlite.db")).map_err(refused)?;
        let setup = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE log(id INTEGER PRIMARY KEY, record BLOB);";
        connection.execute_batch(setup).map_err(refused)?;
        Ok(Self { connection: Mutex::new((connection, 0)) })
    }

    fn insert(&self, record: &[u8]) -> Result<(), Error> {
        let mut guard = self.connection.lock().map_err(|_| program("SQLite", "a writer panicked".into()))?;
        let (connection, rows) = &mut *guard;
        *rows += 1;
        if (*rows).is_multiple_of(ROWS) {
            connection.execute("DELETE FROM log", []).map_err(refused)?;
        }
        let mut insertion =
            connection.prepare_cached("INSERT INTO log(record) VALUES (?1)").map_err(refused)?;
        insertion.execute([record]).map_err(refused)?;
        Ok(())
    }
}

fn refused(cause: rusqlite::Error) -> Error {
    program("SQLite", cause.to_string())
}

impl Subject for Sqlite {
    fn name(&self) -> &'static str {
        "SQLite WAL, synchronous=FULL"
    }

    fn block(&mut self, work: Work) -> Result<BlockResult, Error> {
        let this = &*self;
        threads(work, 0..work.writers, |_, tally| {
            let record = vec![0x5a; work.bytes];
            let end = Instant::now() + work.duration;
            let mut start = Instant::now();
            while start < end {
                this.insert(&record)?;
                start = tally.done(start);
            }
            Ok(())
        })
    }
}

/// redis-server with `appendfsync always`, and redis-benchmark over loopback with as many
/// connections as there are writers.
#[derive(Debug)]
pub(super) struct Redis {
    address: SocketAddr,
    _server: Process,
}

impl Redis {
    /// A server with its data below `folder`.
    pub(super) fn start(folder: &Path, out: &Path) -> Result<Self, Error> {
        // A port that was free a moment ago.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .map_err(system("finding a free port"))?;
        let (folder, port) = (folder.to_string_lossy(), address.port().to_string());
        let words = [
            "-c",
            "0",
            "redis-server",
            "--bind",
            "127.0.0.1",
            "--port",
            &port,
            "--save",
            "",
            "--dir",
            &folder,
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--auto-aof-rewrite-percentage",
            "0",
        ];
        let mut server = Process::start("taskset", &words, &out.join("storage-redis.log"))?;
        server.wait_for(address)?;
        Ok(Self { address, _server: server })
    }
}

impl Subject for Redis {
    fn name(&self) -> &'static str {
        "redis-server, appendfsync always"
    }

    fn block(&mut self, work: Work) -> Result<BlockResult, Error> {
        // At most 64 writers.
        let connections = work.writers as u32;
        let load = Load { command: "set", connections, pipeline: 1, value: work.bytes };
        let requests = client::calibrate(load, work.duration.as_secs_f64(), |requests| {
            client::run(self.address, load, requests)
        })?;
        let block = client::run(self.address, load, requests)?;
        let nanoseconds = |milliseconds: f64| (milliseconds * 1e6) as u64;
        Ok(BlockResult {
            appends: requests,
            elapsed: (requests as f64 * 1e9 / block.rate) as u64,
            latency: [nanoseconds(block.p50), nanoseconds(block.p99), nanoseconds(block.p999)],
            silence: 0,
        })
    }
}

/// libpmemlog on a pool in shared memory, declared to be persistent. It is a program of its own,
/// compiled on demand.
#[derive(Debug)]
pub(super) struct PmemLog {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pool: PathBuf,
}

/// Bytes of the pool.
const POOL: &str = "268435456";

impl PmemLog {
    /// Compiles and starts the program.
    pub(super) fn build(folder: &Path, out: &Path) -> Result<Self, Error> {
        let (source, binary) = (folder.join("pmemlog.c"), folder.join("pmemlog"));
        std::fs::write(&source, include_str!("pmemlog.c")).map_err(system("writing pmemlog.c"))?;
        let paths = [source.to_string_lossy(), binary.to_string_lossy()];
        process::output("cc", &["-O2", "-pthread", "-o", &paths[1], &paths[0], "-lpmemlog"]).map_err(
            |cause| Error::Program {
                program: "libpmemlog".into(),
                what: cause.to_string(),
                fix: "install it: apt-get install libpmemlog-dev",
            },
        )?;
        let pool = PathBuf::from(format!("/dev/shm/sietch-bench-{}.pool", std::process::id()));
        let log =
            std::fs::File::create(out.join("storage-pmemlog.log")).map_err(system("creating a log file"))?;
        let mut child = Command::new(&binary)
            .arg(&pool)
            .arg(POOL)
            .env("PMEM_IS_PMEM_FORCE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(system("starting the libpmemlog program"))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(input), Some(output)) => Ok(Self { child, input, output: BufReader::new(output), pool }),
            _ => Err(program("libpmemlog", "started without its pipes".into())),
        }
    }
}

impl Drop for PmemLog {
    fn drop(&mut self) {
        // It holds no data that matters.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.pool);
    }
}

impl Subject for PmemLog {
    fn name(&self) -> &'static str {
        "libpmemlog"
    }

    fn block(&mut self, work: Work) -> Result<BlockResult, Error> {
        let talking = "talking to the libpmemlog program";
        writeln!(self.input, "{} {} {}", work.bytes, work.writers, work.duration.as_secs_f64())
            .and_then(|()| self.input.flush())
            .map_err(system(talking))?;
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(system(talking))?;
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let &[appends, elapsed, p50, p99, p999, silence] = numbers.as_slice() else {
            return Err(program("libpmemlog", format!("answered `{}`", line.trim())));
        };
        Ok(BlockResult { appends, elapsed, latency: [p50, p99, p999], silence })
    }
}
