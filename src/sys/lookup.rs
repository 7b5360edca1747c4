//! The C library's lookup of host names, for one address family or both: the standard library offers only both.

use std::ffi::{CString, c_int};
use std::io;
use std::net::SocketAddr;
use std::ptr;

use socket2::SockAddr;

/// Returns the addresses of a host in this family, or in both (`AF_UNSPEC`). Has no time limit.
///
/// # Errors
/// `NotFound` for a host without an address, and `HostUnreachable` if the name server doesn't answer.
pub fn look_up(host: &str, port: u16, family: c_int) -> io::Result<Vec<SocketAddr>> {
    let host = CString::new(host)?;
    let mut list = ptr::null_mut();
    let mut addresses = Vec::new();
    // SAFETY: all zeroes are valid hints, which ask for everything. If the library returns 0, it has filled the list: each
    // entry is valid, with an address of the stated length, until the list is freed.
    unsafe {
        let mut hints: libc::addrinfo = std::mem::zeroed();
        (hints.ai_family, hints.ai_socktype) = (family, libc::SOCK_STREAM);
        let failure =
            libc::getaddrinfo(host.as_ptr(), ptr::null(), &raw const hints, &raw mut list);
        match failure {
            0 => {}
            libc::EAI_SYSTEM => return Err(io::Error::last_os_error()),
            libc::EAI_NONAME | libc::EAI_NODATA => return Err(io::ErrorKind::NotFound.into()),
            libc::EAI_AGAIN => return Err(io::ErrorKind::HostUnreachable.into()),
            _ => return Err(io::ErrorKind::Other.into()),
        }
        let mut next = list;
        while let Some(entry) = next.as_ref() {
            let ((), address) = SockAddr::try_init(|storage, length| {
                *length = entry.ai_addrlen;
                let bytes = entry.ai_addrlen as usize;
                ptr::copy_nonoverlapping(entry.ai_addr.cast::<u8>(), storage.cast(), bytes);
                Ok(())
            })?;
            addresses.extend(address.as_socket());
            next = entry.ai_next;
        }
        libc::freeaddrinfo(list);
    }
    for address in &mut addresses {
        address.set_port(port);
    }
    Ok(addresses)
}
