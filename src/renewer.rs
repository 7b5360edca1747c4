//! The background thread that keeps leases alive.
//!
//! It does what it is told, over the connection that it is given, and sends both back: what came of
//! it, and the connection where that is still good. When that is done, and what follows, is decided
//! by others. So a connection that hangs holds up this thread alone, never the one that watches the
//! deadline; and between two orders that one has the connection, so that it hears what the server
//! says by itself, and can release the lock without waking anybody. The thread starts with the
//! first order: a short run never has it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::clock::{Moment, now};
use crate::lease::try_timeout;
use crate::lock::{Claim, Connection, Error, LeaseState, Loss, Name, Server, Who};
use crate::sys;

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Lengthen the leases.
    Renew,
    /// Look whether the locks are still ours.
    Check,
}

/// What came of it.
#[derive(Debug)]
pub enum News {
    /// The leases of all that are still ours are lengthened; the request was sent at this moment.
    Renewed(Moment),
    /// The server said, asked at this moment, that all that are still ours are so for this much more.
    Confirmed(Moment, Duration),
    /// Somebody wants the run to end.
    Cancelled(Name, Box<Who>),
    /// This lock is not ours any more.
    Lost(Name, Loss),
    /// Our job has given this lock back.
    Returned(Name),
    /// No answer: nobody knows.
    Failed(Error),
}

/// An order with what is needed for it.
struct Work {
    order: Order,
    link: Option<Connection>,
    claims: Vec<Claim>,
}

/// An order that was carried out.
pub struct Done {
    /// The connection, if it is still good.
    pub link: Option<Connection>,
    pub news: Vec<News>,
}

/// The pause before another try to wake the thread that decides.
const WAKE_AGAIN: Duration = Duration::from_millis(1);

/// A running renewer.
pub struct Renewer {
    /// How long an order may take.
    patience: Duration,
    orders: Sender<Work>,
    done: Receiver<Done>,
    wake: Arc<EventFd>,
    /// An order is being carried out.
    busy: bool,
}

impl Renewer {
    /// Starts the thread. It lives for as long as the process, or until this is dropped.
    pub fn start(server: &Server, claims: &[Claim]) -> io::Result<Self> {
        let mut server = server.clone();
        let within = claims.iter().map(|claim| try_timeout(claim.ttl())).min();
        server.timeout = server.timeout.min(within.unwrap_or(server.timeout));
        // For connecting, for the renewal, and for the look after it. Somewhat more, so that the thread that
        // waits for an order doesn't give up just before it is done.
        let patience = server.timeout * 3 + Duration::from_millis(200);
        let server = Arc::new(server);
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_flags(flags)?);
        let (orders, ordered) = channel::<Work>();
        let (report, done) = channel();
        let waker = Arc::clone(&wake);
        sys::start_thread("renewer", sys::USUAL_STACK, move || {
            while let Ok(work) = ordered.recv() {
                if report.send(work.carry_out(&server)).is_err() {
                    break;
                }
                // What nobody hears of would count for nothing.
                while waker.write(1).is_err() {
                    std::thread::sleep(WAKE_AGAIN);
                }
            }
        })?;
        Ok(Self {
            patience,
            orders,
            done,
            wake,
            busy: false,
        })
    }

    /// Whether an order is being carried out; another has to wait for it.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// Has something done with these claims, over the connection or a fresh one.
    pub fn order(&mut self, order: Order, link: Option<Connection>, claims: Vec<Claim>) {
        // A thread that is gone does nothing; the deadline takes care of that.
        self.busy = self
            .orders
            .send(Work {
                order,
                link,
                claims,
            })
            .is_ok();
    }

    /// What was done, if it is.
    pub fn done(&mut self) -> Option<Done> {
        let _ = self.wake.read();
        let done = self.done.try_recv().ok()?;
        self.busy = false;
        Some(done)
    }

    /// Waits for an order that is being carried out: at most [`try_timeout`] for connecting, and as much
    /// for each of two answers, whatever the thread hangs in.
    pub fn finish(&mut self) -> Option<Done> {
        let waits = self.busy.then(|| self.done.recv_timeout(self.patience));
        let done = waits.and_then(Result::ok);
        self.busy = false;
        done
    }
}

impl AsFd for Renewer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl Work {
    /// After a failure the answer may still come, so that connection is given up and the next try
    /// makes a fresh one; what was learned before it counts.
    fn carry_out(self, server: &Arc<Server>) -> Done {
        let mut news = Vec::new();
        let link = match self.over_a_link(server, &mut news) {
            Ok(link) => Some(link),
            Err(error) => {
                news.push(News::Failed(error));
                None
            }
        };
        Done { link, news }
    }

    fn over_a_link(self, server: &Arc<Server>, news: &mut Vec<News>) -> Result<Connection, Error> {
        let sent = now();
        let mut link = match self.link {
            Some(link) => link,
            None => Connection::open(server)?,
        };
        if self.order == Order::Renew {
            let standings = Claim::renew_all(&self.claims, &mut link, server.timeout)?;
            // A renewal gives what was asked for, whatever number came back; that the work has
            // extended the lease beyond that is for the check to say.
            if shortest(&standings).is_some() {
                news.push(News::Renewed(sent));
            }
            news.extend(told(&self.claims, standings));
        }
        // A renewal, too, changes the key, after which the server has to be asked anew to tell of
        // changes; and what happened before it was asked, it doesn't tell.
        if !news.iter().any(|news| matches!(news, News::Lost(..))) {
            let asked = now();
            let standings = Claim::check_all(&self.claims, &mut link, server.timeout)?;
            let left = shortest(&standings);
            news.extend(left.map(|left| News::Confirmed(asked, left)));
            news.extend(told(&self.claims, standings));
        }
        Ok(link)
    }
}

/// The end of the first lease among those that are still ours.
fn shortest(standings: &[LeaseState]) -> Option<Duration> {
    let left = |standing: &LeaseState| match standing {
        LeaseState::Held { left, .. } => Some(*left),
        LeaseState::Released | LeaseState::Lost(_) => None,
    };
    standings.iter().filter_map(left).min()
}

/// What there is to tell of each claim.
fn told(claims: &[Claim], standings: Vec<LeaseState>) -> Vec<News> {
    let each = claims.iter().zip(standings);
    each.filter_map(|(claim, standing)| {
        let name = claim.lock().name().clone();
        match standing {
            LeaseState::Held { cancelled_by, .. } => Some(News::Cancelled(name, cancelled_by?)),
            LeaseState::Released => Some(News::Returned(name)),
            LeaseState::Lost(loss) => Some(News::Lost(name, loss)),
        }
    })
    .collect()
}
