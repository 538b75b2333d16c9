//! The calls of a script. Each parses its arguments, makes the call on the host, and compares the
//! outputs beside the result.

use std::net::SocketAddr;

use super::payload::byte_at;
use super::{Runner, outcome_text};
use crate::host::{Errno, OptionValue, Outcome, PollEntry};
use crate::script::{Call, Value, errno_of};

/// The port of the host's listeners, and the peer's port for its connects, where a script says
/// `...`.
const PORT: u16 = 8080;

impl Call {
    fn argument(&self, place: usize) -> Result<&Value, String> {
        self.arguments.get(place).ok_or_else(|| format!("{} has too few arguments", self.name))
    }

    fn integer(&self, place: usize) -> Result<i64, String> {
        match self.argument(place)? {
            Value::Integer(number) => Ok(*number),
            Value::List(list) => match list.as_slice() {
                [Value::Integer(number)] => Ok(*number),
                _ => Err(format!("argument {} of {} is not a number", place + 1, self.name)),
            },
            _ => Err(format!("argument {} of {} is not a number", place + 1, self.name)),
        }
    }

    fn int(&self, place: usize) -> Result<i32, String> {
        i32::try_from(self.integer(place)?).map_err(|_| format!("argument {} does not fit", place + 1))
    }
}

fn field(value: &Value, name: &str) -> Option<i64> {
    let Value::Fields(fields) = value else { return None };
    fields.iter().find(|field| field.0 == name).and_then(|field| match field.1 {
        Value::Integer(number) => Some(number),
        _ => None,
    })
}

impl Runner {
    /// Makes a call. `again` if it is a retry of a blocked call.
    pub(super) fn call(&mut self, call: &Call, again: bool) -> Result<Outcome, String> {
        match call.name.as_str() {
            "socket" => {
                let domain = if self.peers.ipv6() { libc::AF_INET6 } else { libc::AF_INET };
                Ok(self.host.socket(domain, call.int(1)?, call.int(2)?))
            }
            "bind" => {
                let address = SocketAddr::new(self.peers.local_address(), self.port(call, 1)?);
                Ok(self.host.bind(self.fd(call)?, address))
            }
            "listen" => Ok(self.host.listen(self.fd(call)?, call.int(1)?)),
            "accept" | "accept4" => {
                let accepted = self.host.accept(self.fd(call)?);
                Ok(accepted.map(|(fd, _)| i64::from(fd)))
            }
            "connect" => self.call_connect(call, again),
            "read" | "recv" => self.call_read(call),
            "write" | "send" => self.call_write(call),
            "close" => Ok(self.host.close(self.fd(call)?)),
            "shutdown" => Ok(self.host.shutdown(self.fd(call)?, call.int(1)?)),
            "fcntl" => {
                let argument = if call.arguments.len() > 2 { call.integer(2)? } else { 0 };
                Ok(self.host.control(self.fd(call)?, call.int(1)?, argument))
            }
            "setsockopt" => {
                let value = option_value(call.argument(3)?)?;
                Ok(self.host.set_option(self.fd(call)?, call.int(1)?, call.int(2)?, &value))
            }
            "getsockopt" => self.call_getsockopt(call),
            "ioctl" => self.call_ioctl(call),
            "poll" => self.call_poll(call),
            name => Err(format!("there is no call `{name}`")),
        }
    }

    /// The host's socket for the number in the first argument.
    fn fd(&self, call: &Call) -> Result<i32, String> {
        let number = call.integer(0)?;
        Ok(self.fds.get(&number).copied().unwrap_or(-1))
    }

    fn port(&self, call: &Call, place: usize) -> Result<u16, String> {
        match call.argument(place)? {
            Value::Ellipsis => Ok(PORT),
            _ => u16::try_from(call.integer(place)?).map_err(|_| "a port has sixteen bits".into()),
        }
    }

    fn call_connect(&mut self, call: &Call, again: bool) -> Result<Outcome, String> {
        let fd = self.fd(call)?;
        if again {
            return Ok(self.host.connected(fd));
        }
        let port = self.port(call, 1)?;
        self.under_test = Some(fd);
        let outcome = self.host.connect(fd, SocketAddr::new(self.peers.remote_address(), port));
        if outcome == Err(Errno(libc::EINPROGRESS)) {
            self.peers.connecting(port);
            if self.host.blocks(fd) {
                return Ok(self.host.connected(fd));
            }
        }
        Ok(outcome)
    }

    fn call_read(&mut self, call: &Call) -> Result<Outcome, String> {
        let fd = self.fd(call)?;
        let length = usize::try_from(call.integer(2)?).map_err(|_| "a length is not negative")?;
        let flags = if call.name == "recv" { call.int(3)? } else { 0 };
        let mut buffer = vec![0; length];
        let outcome = self.host.receive_bytes(fd, &mut buffer, flags);
        if let Ok(count) = outcome {
            let stream = self.streams.entry(fd).or_default();
            let begin = stream.1 + 1;
            let wrong = (begin..)
                .zip(&buffer[..count as usize])
                .find(|(position, byte)| byte_at(*position) != **byte);
            if let Some((place, _)) = wrong {
                return Err(format!("byte {place} of the stream was read wrong"));
            }
            if flags & libc::MSG_PEEK == 0 {
                stream.1 += count.cast_unsigned();
            }
        }
        Ok(outcome)
    }

    fn call_write(&mut self, call: &Call) -> Result<Outcome, String> {
        let fd = self.fd(call)?;
        let length = call.integer(2)?.cast_unsigned();
        let stream = self.streams.entry(fd).or_default();
        let data: Vec<u8> = (stream.0 + 1..=stream.0 + length).map(byte_at).collect();
        let outcome = self.host.send_bytes(fd, &data);
        if let Ok(count) = outcome {
            stream.0 += count.cast_unsigned();
        }
        Ok(outcome)
    }

    fn call_getsockopt(&mut self, call: &Call) -> Result<Outcome, String> {
        let found = match self.host.option(self.fd(call)?, call.int(1)?, call.int(2)?) {
            Ok(found) => found,
            Err(errno) => return Ok(Err(errno)),
        };
        if *call.argument(3)? != Value::Ellipsis {
            let expected = option_value(call.argument(3)?)?;
            if expected != found {
                return Err(format!("the option is {found:?}, not {expected:?}"));
            }
        }
        Ok(Ok(0))
    }

    fn call_ioctl(&mut self, call: &Call) -> Result<Outcome, String> {
        let request = call.integer(1)?.cast_unsigned();
        Ok(match self.host.query(self.fd(call)?, request) {
            Ok(found) if found != call.integer(2)? => return Err(format!("the answer is {found}")),
            Ok(_) => Ok(0),
            Err(errno) => Err(errno),
        })
    }

    fn call_poll(&mut self, call: &Call) -> Result<Outcome, String> {
        let Value::List(list) = call.argument(0)? else { return Err("poll takes a list of sockets".into()) };
        let mut entries = Vec::new();
        for value in list {
            let part = |name: &str| field(value, name).ok_or(format!("an entry of poll needs `{name}`"));
            let fd = self.fds.get(&part("fd")?).copied().unwrap_or(-1);
            // Sixteen bits of flags.
            entries.push(PollEntry { fd, events: part("events")? as i16, revents: 0 });
        }
        let count = self.host.poll(&mut entries);
        if count == 0 && call.until.is_some() {
            return Ok(Err(Errno(libc::EAGAIN)));
        }
        for (value, entry) in list.iter().zip(&entries) {
            let expected = field(value, "revents").unwrap_or(0) as i16;
            if entry.revents != expected {
                return Err(format!("revents are {:#x}, not {expected:#x}", entry.revents));
            }
        }
        Ok(Ok(count))
    }

    /// Compares the result of a call with the script, and records the number of a new socket.
    pub(super) fn check_outcome(&mut self, call: &Call, outcome: &Outcome) -> Result<(), String> {
        let makes_socket = matches!(call.name.as_str(), "socket" | "accept" | "accept4");
        let expected = match (&call.result, &call.errno) {
            (Value::Ellipsis, _) => return Ok(()),
            (Value::Integer(_), Some(name)) => {
                Err(Errno(errno_of(name).ok_or_else(|| format!("there is no error `{name}`"))?))
            }
            (Value::Integer(number), None) => Ok(*number),
            _ => return Err("the result of a call is a number".into()),
        };
        if let (true, Ok(number), Ok(live)) = (makes_socket, expected, outcome) {
            let live = i32::try_from(*live).unwrap_or(-1);
            self.fds.insert(number, live);
            self.streams.insert(live, (0, 0));
            if call.name != "socket" {
                self.under_test = Some(live);
            }
            return Ok(());
        }
        if call.name == "close" && outcome.is_ok() {
            self.fds.remove(&call.integer(0)?);
        }
        if expected == *outcome {
            return Ok(());
        }
        Err(format!("{} returned {}, not {}", call.name, outcome_text(outcome), outcome_text(&expected)))
    }
}

fn option_value(value: &Value) -> Result<OptionValue, String> {
    match value {
        Value::Text(text) => Ok(OptionValue::Text(text.clone())),
        Value::List(list) => match list.as_slice() {
            [Value::Integer(number)] => {
                i32::try_from(*number).map(OptionValue::Integer).map_err(|_| "the value does not fit".into())
            }
            [Value::Text(text)] => Ok(OptionValue::Text(text.clone())),
            _ => Err("an option's value is one number in brackets".into()),
        },
        Value::Fields(_) => match (field(value, "onoff"), field(value, "linger")) {
            (Some(on), Some(seconds)) => {
                Ok(OptionValue::Linger(on != 0, i32::try_from(seconds).unwrap_or(i32::MAX)))
            }
            _ => Err("a structure is `{onoff=N, linger=N}`".into()),
        },
        _ => Err("an option's value is `[N]`, `\"text\"` or `{onoff=N, linger=N}`".into()),
    }
}
