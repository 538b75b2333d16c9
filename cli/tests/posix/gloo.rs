//! All-reduce of gloo, the library of PyTorch's distributed training: each rank listens, connects
//! to the others, and has a thread that waits in `epoll_wait` for all of them.

use crate::combinations;
use crate::testbed::{Sides, Testbed};

combinations!(load, needs ["g++", "/usr/include/gloo/allreduce.h"], in CI [Sides::BOTH]);

/// More than two, so that parts of the sums pass through several ranks.
const RANKS: usize = 4;

fn load(testbed: &Testbed) {
    let source =
        testbed.write("all_reduce.cc", include_str!("../../../bench/src/posix/scripts/all_reduce.cc"));
    let program = testbed.path("all_reduce");
    let compile = ["-O1", "-std=c++17", &source, "-lgloo", "-lpthread", "-o", &program];
    testbed.start(testbed.kernel_command("g++", &compile), "g++").succeed();
    // One float, some packets, and more than the buffers of a socket.
    for (floats, rounds) in [("1", 500), ("1000", 100), ("1000000", 3)] {
        let (store, ranks) = (testbed.path(&format!("store-{floats}")), RANKS.to_string());
        std::fs::create_dir(&store).unwrap();
        let rounds = (rounds * testbed.size(1, 50)).to_string();
        let started: Vec<_> = (0..RANKS)
            .map(|rank| {
                let number = rank.to_string();
                let arguments: [&str; 6] = ["rank", &store, &number, &ranks, floats, &rounds];
                let command = match rank % 2 {
                    0 => testbed.server_command(&program, &arguments),
                    _ => testbed.client_command(&program, &arguments),
                };
                testbed.start(command, "rank")
            })
            .collect();
        for rank in started {
            assert_eq!(rank.succeed().text(), "all right\n");
        }
    }
}
