//! Looks up the addresses of a host, with a time limit, which the C library doesn't have.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::channel;
use std::time::Instant;

use super::in_thread;
use super::stream::left;
use crate::sys::look_up;

/// Returns the addresses of a host. Each lookup has its own thread, which may outlive this call. Some name servers fail or stay
/// silent if they are asked for both IPv4 and IPv6 addresses, and musl then finds none. So redlock also looks up each family
/// alone, if the lookup of both fails or takes a while.
pub(super) fn resolve(host: &str, port: u16, until: Instant) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let (answer, answers) = channel();
    let look_up = |family| {
        let host = host.to_owned();
        in_thread(&answer, move || {
            let is_first = family == libc::AF_UNSPEC;
            let listed = is_first.then(|| in_hosts_file(&host, port)).flatten();
            listed.map_or_else(|| look_up(&host, port, family), Ok)
        })
    };
    look_up(libc::AF_UNSPEC)?;
    if let Ok(Ok(addresses)) = answers.recv_timeout(left(until)? / 8) {
        return Ok(addresses);
    }
    look_up(libc::AF_INET)?;
    look_up(libc::AF_INET6)?;
    drop(answer);
    let mut result = Err(io::ErrorKind::TimedOut.into());
    while let Ok(answer) = answers.recv_timeout(left(until)?) {
        match answer {
            Ok(addresses) => return Ok(addresses),
            failed => result = failed,
        }
    }
    result
}

/// Returns the addresses of a host in `/etc/hosts`, if it is there. musl itself finds only names in the same case.
fn in_hosts_file(host: &str, port: u16) -> Option<Vec<SocketAddr>> {
    let file = BufReader::new(File::open("/etc/hosts").ok()?);
    let of_host = |line: Vec<u8>| {
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split('#').next()?.split_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        let is_named = words.any(|name| name.eq_ignore_ascii_case(host));
        is_named.then(|| (address, port).into())
    };
    let lines = file.split(b'\n').map_while(Result::ok);
    let addresses: Vec<SocketAddr> = lines.filter_map(of_host).collect();
    (!addresses.is_empty()).then_some(addresses)
}
