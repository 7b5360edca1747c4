//! The background thread that keeps a lease alive.
//!
//! It renews when it is told to and reports what came of it; when that is, and what follows, is
//! decided by the session. So a connection that hangs holds up this thread alone, never the one
//! that watches the deadline. It starts with the first renewal: a short run never has it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::clock::{Moment, now};
use crate::lease::try_timeout;
use crate::lock::{Claim, Error, Link, Loss, Renewal, Server};

/// What came of a renewal.
#[derive(Debug)]
pub enum News {
    /// The lease is lengthened; the request was sent at this moment.
    Renewed(Moment),
    /// The lock is not ours any more.
    Lost(Loss),
    /// No answer: nobody knows.
    Failed(Error),
}

/// A running renewer.
pub struct Renewer {
    orders: Sender<()>,
    news: Receiver<News>,
    wake: Arc<EventFd>,
    thread: JoinHandle<Option<Link>>,
}

impl Renewer {
    /// Starts the thread, which takes the connection over.
    pub fn start(link: Link, server: &Server, claim: Claim) -> io::Result<Self> {
        let within = try_timeout(claim.ttl());
        let mut server = server.clone();
        server.timeout = server.timeout.min(within);
        let server = Arc::new(server);
        let wake = Arc::new(EventFd::from_flags(
            EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK,
        )?);
        let (orders, ordered) = channel();
        let (report, news) = channel();
        let waker = Arc::clone(&wake);
        let thread = std::thread::Builder::new()
            .name("renewer".into())
            .spawn(move || {
                let mut link = Some(link);
                while ordered.recv().is_ok() {
                    let told = report.send(renew(&mut link, &server, &claim));
                    if told.is_err() || waker.write(1).is_err() {
                        break;
                    }
                }
                link
            })?;
        Ok(Self {
            orders,
            news,
            wake,
            thread,
        })
    }

    /// Asks for a renewal.
    pub fn renew(&self) {
        // A thread that is gone renews nothing; the deadline takes care of that.
        let _ = self.orders.send(());
    }

    /// The next news, if any.
    pub fn news(&self) -> Option<News> {
        let _ = self.wake.read();
        self.news.try_recv().ok()
    }

    /// Ends the thread and takes the connection back, if there still is a good one. Waits for a
    /// renewal that is under way, so at most [`try_timeout`].
    pub fn stop(self) -> Option<Link> {
        drop(self.orders);
        self.thread.join().ok().flatten()
    }
}

impl AsFd for Renewer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// One renewal. After a failure the answer may still come, so that connection is given up and the
/// next try makes a fresh one.
fn renew(link: &mut Option<Link>, server: &Arc<Server>, claim: &Claim) -> News {
    let sent = now();
    let result = match link.take() {
        Some(link) => Ok(link),
        None => Link::open(server),
    }
    .and_then(|mut open| {
        let renewal = claim.renew(&mut open, server.timeout)?;
        *link = Some(open);
        Ok(renewal)
    });
    match result {
        Ok(Renewal::Renewed) => News::Renewed(sent),
        Ok(Renewal::Lost(loss)) => News::Lost(loss),
        Err(error) => News::Failed(error),
    }
}
