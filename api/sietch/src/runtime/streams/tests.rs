//! Streams without a socket service: every connection is the kernel's. With a service they are
//! tested with whole programs (`cli/tests/posix/streams.rs`).

use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use super::*;
use crate::Runtime;

fn nowhere() -> DirectService {
    DirectService::new("/nonexistent/sockets.sock", [7; 16])
}

fn local() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// Leaves the rest of the iteration to other tasks.
async fn give_way() {
    let mut waited = false;
    poll_fn(|context| {
        if waited {
            return Poll::Ready(());
        }
        waited = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn without_a_service_every_connection_is_the_kernels() {
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    let wanted = bytes.clone();
    let main = async move |net: Net| {
        let streams = net.streams(nowhere())?;
        let mut listener = streams.listen(local(), 16)?;
        let address = listener.address().expect("it is bound");
        assert!(!listener.is_registered());
        let echo = net.spawn(async move {
            let (mut stream, _) = listener.accept().await?;
            assert_eq!(stream.path(), Path::Kernel);
            loop {
                let mut copy = Vec::new();
                let read = stream.read_with(|pieces| {
                    copy = pieces[0].to_vec();
                    copy.len()
                });
                if read.await?.is_none() {
                    return stream.shutdown().await;
                }
                let mut sent = 0;
                while sent < copy.len() {
                    sent += stream.write_with(|space| _ = space.put(&copy[sent..])).await?;
                }
            }
        });
        let mut stream = streams.connect(address).await?;
        assert_eq!(stream.peer(), Some(address));
        // More than the buffers of both hold, so a part has to be read in between.
        let mut received = Vec::new();
        let mut sent = 0;
        while sent < bytes.len() {
            let now = bytes.len().min(sent + 30_000);
            stream.write_all(&bytes[sent..now]).await?;
            sent = now;
            assert!(stream.more_than(1_000).await?);
            let mut out = [0; 20_000];
            let count = stream.read(&mut out).await?;
            received.extend_from_slice(&out[..count]);
        }
        stream.shutdown().await?;
        let mut out = [0; 20_000];
        while let count @ 1.. = stream.read(&mut out).await? {
            received.extend_from_slice(&out[..count]);
        }
        echo.await.expect("it is not aborted")?;
        io::Result::Ok(received)
    };
    let received = Runtime::without_device().expect("a descriptor").run(main).expect("it runs");
    assert!(received.expect("no error") == wanted);
}

#[test]
fn a_peer_that_sends_much_leaves_time_to_other_tasks() {
    const BYTES: usize = 20_000;
    let main = async move |net: Net| {
        let streams = net.streams(nowhere())?;
        let mut listener = streams.listen(local(), 16)?;
        let address = listener.address().expect("it is bound");
        let client = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(&[1; BYTES]).expect("there is room");
            stream.shutdown(Shutdown::Write).expect("it is connected");
            stream.read(&mut [0]).expect("the end")
        });
        let (mut stream, _) = listener.accept().await?;
        // Everything has arrived, so no read waits for the peer.
        while stream.available() < BYTES {
            assert!(stream.more_than(BYTES - 1).await?);
        }
        let (turns, done) = (Rc::new(Cell::new(0_usize)), Rc::new(Cell::new(false)));
        let (counted, ended) = (Rc::clone(&turns), Rc::clone(&done));
        net.spawn(async move {
            while !ended.get() {
                counted.set(counted.get() + 1);
                give_way().await;
            }
        });
        let mut bytes = 0;
        while let count @ 1.. = stream.read(&mut [0]).await? {
            bytes += count;
        }
        done.set(true);
        drop(stream);
        assert_eq!(client.join().expect("it does not panic"), 0);
        io::Result::Ok((bytes, turns.get()))
    };
    let counted = Runtime::without_device().expect("a descriptor").run(main).expect("it runs");
    let (bytes, turns) = counted.expect("no error");
    assert_eq!(bytes, BYTES);
    assert!(turns >= BYTES / CALLS_PER_ITERATION as usize, "{turns} turns of the other task");
}
