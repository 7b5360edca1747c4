//! The background thread that keeps leases alive, and hears at once when a lock is taken away.
//!
//! It renews when it is told to and reports what came of it; when that is, and what follows, is
//! decided by the session. So a connection that hangs holds up this thread alone, never the one
//! that watches the deadline. It starts with the first renewal: a short run never has it.
//!
//! Between renewals it listens: where the server can track keys, it says when somebody else writes
//! a key of ours, and a check then tells whether the lock is still ours.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::clock::{Moment, now};
use crate::lease::try_timeout;
use crate::lock::{Check, Claim, Error, Incoming, Link, Loss, Name, Renewal, Server};

/// What came of a renewal, or happened between two.
#[derive(Debug)]
pub enum News {
    /// The leases of all that are still ours are lengthened; the request was sent at this moment.
    Renewed(Moment),
    /// This lock is not ours any more.
    Lost(Name, Loss),
    /// Our job has given this lock back.
    Returned(Name),
    /// No answer: nobody knows.
    Failed(Error),
}

/// A running renewer.
pub struct Renewer {
    orders: Sender<Vec<Claim>>,
    order: Arc<EventFd>,
    news: Receiver<News>,
    wake: Arc<EventFd>,
    thread: JoinHandle<Option<Link>>,
}

impl Renewer {
    /// Starts the thread, which takes the connection over, or makes its own.
    pub fn start(link: Option<Link>, server: &Server, claims: &[Claim]) -> io::Result<Self> {
        let mut server = server.clone();
        let within = claims.iter().map(|claim| try_timeout(claim.ttl())).min();
        server.timeout = server.timeout.min(within.unwrap_or(server.timeout));
        let eventfd = || {
            let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
            EventFd::from_flags(flags).map(Arc::new)
        };
        let (order, wake) = (eventfd()?, eventfd()?);
        let (orders, ordered) = channel();
        let (report, news) = channel();
        let thread = Thread {
            server: Arc::new(server),
            claims: Vec::new(),
            watched: false,
            link,
            order: Arc::clone(&order),
            report,
            wake: Arc::clone(&wake),
        };
        let thread = std::thread::Builder::new()
            .name("renewer".into())
            .spawn(move || thread.work(&ordered))?;
        Ok(Self {
            orders,
            order,
            news,
            wake,
            thread,
        })
    }

    /// Asks for a renewal of these claims.
    pub fn renew(&self, claims: Vec<Claim>) {
        // A thread that is gone renews nothing; the deadline takes care of that.
        let _ = self.orders.send(claims);
        let _ = self.order.write(1);
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
        let _ = self.order.write(1);
        self.thread.join().ok().flatten()
    }
}

impl AsFd for Renewer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// The thread's side.
struct Thread {
    server: Arc<Server>,
    claims: Vec<Claim>,
    link: Option<Link>,
    /// Whether the server was asked to tell us of changed keys, over this connection.
    watched: bool,
    order: Arc<EventFd>,
    report: Sender<News>,
    wake: Arc<EventFd>,
}

impl Thread {
    fn work(mut self, ordered: &Receiver<Vec<Claim>>) -> Option<Link> {
        loop {
            let _ = self.order.read();
            match ordered.try_recv() {
                Ok(claims) => {
                    self.claims = claims;
                    for news in self.renew() {
                        self.tell(news);
                    }
                }
                Err(TryRecvError::Disconnected) => return self.link,
                Err(TryRecvError::Empty) => {
                    for news in self.listen() {
                        self.tell(news);
                    }
                    self.sleep();
                }
            }
        }
    }

    /// Tells the main thread; one that is gone needs no news.
    fn tell(&self, news: News) {
        let _ = self.report.send(news);
        let _ = self.wake.write(1);
    }

    /// One renewal. After a failure the answer may still come, so that connection is given up and
    /// the next try makes a fresh one.
    fn renew(&mut self) -> Vec<News> {
        let sent = now();
        let within = self.server.timeout;
        let claims = self.claims.clone();
        let renewals = match self.over_the_link(|link| Claim::renew_all(&claims, link, within)) {
            Ok(renewals) => renewals,
            Err(error) => return vec![News::Failed(error)],
        };
        let mut news = Vec::new();
        for (claim, renewal) in claims.into_iter().zip(renewals) {
            match renewal {
                Renewal::Renewed { .. } => {}
                Renewal::Returned => news.push(self.without(&claim, News::Returned)),
                Renewal::Lost(loss) => {
                    news.push(self.without(&claim, |name| News::Lost(name, loss)));
                }
            }
        }
        if !self.claims.is_empty() {
            news.push(News::Renewed(sent));
        }
        news
    }

    /// Forgets a claim that isn't ours any more, and says so.
    fn without(&mut self, gone: &Claim, news: impl FnOnce(Name) -> News) -> News {
        self.claims.retain(|claim| claim.token() != gone.token());
        news(gone.lock().name().clone())
    }

    /// Takes in what the server says by itself.
    fn listen(&mut self) -> Vec<News> {
        let mut suspected = false;
        while let Some(link) = &mut self.link {
            match link.receive() {
                Ok(Some(Incoming::Invalidated)) => suspected = true,
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    self.link = None;
                    return vec![News::Failed(error)];
                }
            }
        }
        if suspected { self.check() } else { Vec::new() }
    }

    /// Looks whether the locks are still ours.
    fn check(&mut self) -> Vec<News> {
        let within = self.server.timeout;
        let claims = self.claims.clone();
        let checks = match self.over_the_link(|link| Claim::check_all(&claims, link, within)) {
            Ok(checks) => checks,
            Err(error) => return vec![News::Failed(error)],
        };
        let mut news = Vec::new();
        for (claim, check) in claims.into_iter().zip(checks) {
            match check {
                Check::Ours => {}
                Check::Returned => news.push(self.without(&claim, News::Returned)),
                Check::Lost(loss) => {
                    news.push(self.without(&claim, |name| News::Lost(name, loss)));
                }
            }
        }
        news
    }

    /// Does something over the connection, or over a fresh one. One that fails is given up.
    fn over_the_link<T>(
        &mut self,
        work: impl FnOnce(&mut Link) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut link = if let Some(link) = self.link.take() {
            link
        } else {
            self.watched = false;
            Link::open(&self.server)?
        };
        if !self.watched {
            link.watch_keys()?;
            self.watched = true;
        }
        let done = work(&mut link)?;
        self.link = Some(link);
        Ok(done)
    }

    /// Sleeps until there is an order, or the server says something.
    fn sleep(&self) {
        let mut fds = vec![PollFd::new(self.order.as_fd(), PollFlags::POLLIN)];
        if let Some(link) = &self.link {
            fds.push(PollFd::new(link.as_fd(), PollFlags::POLLIN));
        }
        // Whatever goes wrong here shows when the next order is tried.
        let _ = poll(&mut fds, PollTimeout::NONE);
    }
}
