//! What a run holds: its locks, the lease they have together, and who keeps it alive.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::clock::{Moment, now};
use crate::command::environment::JobLock;
use crate::lease::Lease;
use crate::lock::{Claim, Client, Error, ErrorKind, Incoming, LeaseState, Name};
use crate::process;
use crate::renewer::{News, Renewer, Task};
use crate::tree::Known;
use crate::wait::Pace;

/// A lock that we hold.
pub struct Hold {
    pub claim: Claim,
    pub fence: u64,
    pub slot: u32,
    /// It was taken by a run around ours, which will release it.
    pub reentrant: bool,
    /// How long it was waited for; zero when it was free.
    pub waited: Duration,
    /// When a run last succeeded under it, as far as that was asked.
    pub success: Option<Moment>,
}

impl Hold {
    /// As its job finds it.
    pub(super) fn as_job_lock(&self) -> JobLock<'_> {
        JobLock {
            claim: &self.claim,
            fence: self.fence,
            slot: self.slot,
            reentrant: self.reentrant,
        }
    }
}

/// All locks of a run, in the order in which they were taken.
pub struct Holds {
    pub all: Vec<Hold>,
    /// The lease of all together: it ends when the first of them does.
    pub lease: Option<Lease>,
    /// The way to Redis; not open while the renewer has it.
    pub client: Client,
    /// The length of each lease by a renewal.
    ttl: Duration,
    renewer: Option<Renewer>,
    /// How far the claim of a lock has come that the server gave us by itself.
    claiming: Claiming,
    /// When to look whether all is still ours, as the server has said that one of our keys was changed.
    look_at: Option<Moment>,
    /// However often they are changed, they are looked at now and then only.
    looks: Pace,
    /// The server has answered a question of ours: it was reached.
    pub answered: bool,
    /// Each lock has its mark on this host.
    pub marked: bool,
}

/// How long the answer to a claim may take, before the claim is also made over a fresh connection: the
/// old one may be broken, or just slow. Whichever answers first counts, before the short lease of a
/// grant ends.
const CLAIM_WITHIN: Duration = Duration::from_millis(300);

/// A claim for whose answer nobody waits.
#[derive(Clone, Copy)]
enum Claiming {
    No,
    /// It is to be sent when there is time.
    Due,
    /// It was sent at this moment.
    Sent(Moment),
    /// It was sent at this moment, over the connection; and again by the renewer, over another one.
    Twice(Moment),
}

impl Holds {
    /// Nothing is held yet; the leases will be of this length.
    pub fn none(client: Client, ttl: Duration) -> Self {
        Self {
            all: Vec::new(),
            lease: None,
            client,
            ttl,
            renewer: None,
            claiming: Claiming::No,
            look_at: None,
            looks: Pace::default(),
            answered: false,
            marked: false,
        }
    }

    /// A lock is ours.
    pub fn add(&mut self, hold: Hold, lease: Lease) {
        self.all.push(hold);
        self.lease = Some(self.lease.map_or(lease, |all| all.with(lease)));
    }

    /// A lock is ours because the server gave it to us by itself; it has to be claimed yet, and
    /// until that is done its lease is short.
    pub fn add_granted(&mut self, hold: Hold, mut lease: Lease, client: Client) {
        lease.renew_now(now());
        self.add(hold, lease);
        self.client = client;
        self.claiming = Claiming::Due;
    }

    /// How long all of them were waited for, in milliseconds; 0 only if all were free.
    pub fn waited_ms(&self) -> u128 {
        let waited: Duration = self.all.iter().map(|hold| hold.waited).sum();
        waited.as_millis().max(u128::from(!waited.is_zero()))
    }

    /// A lock is not ours any more.
    pub fn forget(&mut self, name: &Name) {
        let (gone, kept) = std::mem::take(&mut self.all)
            .into_iter()
            .partition(|hold| hold.claim.lock().name() == name);
        self.all = kept;
        let gone: Vec<Hold> = gone;
        for hold in &gone {
            self.remove_mark(hold);
        }
    }

    /// Sends a claim that is due. A connection that fails here is found out with the answer.
    pub fn claim(&mut self) {
        if let Claiming::Due = self.claiming {
            let sent = now();
            if let Some(hold) = self.all.first()
                && self.client.is_open()
                && hold.claim.confirm(&mut self.client, self.ttl).is_err()
            {
                self.client.disconnect();
            }
            self.claiming = Claiming::Sent(sent);
        }
    }

    /// Has the leases renewed, in the background.
    ///
    /// # Errors
    /// There is no thread for it: a renewal that failed, as others do.
    pub fn renew(&mut self) -> Result<(), Error> {
        self.start_task(Task::Renew)
    }

    /// Notes down on this host what works under the locks, as it was found from this moment on.
    pub fn leave_marks(&mut self, noted: Moment, members: &[Known]) {
        self.marked = true;
        for hold in self.all.iter().filter(|hold| !hold.reentrant) {
            process::leave_mark(&hold.claim.id(), noted, members);
        }
    }

    /// Leaves all locks to their leases: there may be somebody at work under them whom we can't stop.
    pub fn leave(&mut self) {
        self.all.clear();
    }

    /// The hold is over.
    pub fn remove_mark(&self, hold: &Hold) {
        if self.marked && !hold.reentrant {
            process::remove_mark(&hold.claim.id());
        }
    }

    fn start_task(&mut self, task: Task) -> Result<(), Error> {
        if self.renewer.as_ref().is_some_and(Renewer::is_busy) {
            // What it does now does for this, too: a claim was made twice.
            return Ok(());
        }
        // The answer to a claim may still come.
        let client = match self.claiming {
            Claiming::Sent(_) | Claiming::Twice(_) => self.client.another(),
            Claiming::No | Claiming::Due => self.client.hand_over(),
        };
        let claims: Vec<Claim> = self.all.iter().map(|hold| hold.claim.clone()).collect();
        let renewer = match &mut self.renewer {
            Some(renewer) => renewer,
            None => match Renewer::start(self.ttl) {
                Ok(renewer) => self.renewer.insert(renewer),
                Err(error) => {
                    let what = format!("can't start the renewing thread: {error}");
                    return Err(Error::new(ErrorKind::Internal, what));
                }
            },
        };
        renewer.start_task(task, client, claims);
        Ok(())
    }

    /// What came of a renewal or a claim, or is found out between two.
    pub fn news(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        if let Claiming::Sent(sent) | Claiming::Twice(sent) = self.claiming {
            match self.claimed(sent) {
                Ok(Some(answer)) => {
                    self.claiming = Claiming::No;
                    return vec![answer];
                }
                Ok(None) if self.overdue().is_none_or(|due| now() < due) => {}
                Ok(None) => {
                    let error = self.client.unreachable_error(io::ErrorKind::TimedOut);
                    news.extend(self.claim_again(sent, error));
                }
                Err(error) => {
                    self.client.disconnect();
                    news.extend(self.claim_again(sent, error));
                    self.claiming = Claiming::No;
                }
            }
        }
        let Some(renewer) = &mut self.renewer else {
            return news;
        };
        if let Some(completed) = renewer.completed() {
            news.extend(completed.news);
            // Where the claim was made twice, its answer may still come.
            if completed.client.is_open() {
                self.claiming = Claiming::No;
                self.client = completed.client;
            } else if !matches!(self.claiming, Claiming::Twice(_)) {
                self.claiming = Claiming::No;
            }
        }
        let is_busy = renewer.is_busy();
        if let Claiming::Sent(_) | Claiming::Twice(_) = self.claiming {
            return news;
        }
        if let Err(error) = self.listen() {
            self.client.disconnect();
            news.push(News::Failed(error));
        } else if !is_busy && self.look_at.is_some_and(|at| now() >= at) {
            self.look_at = None;
            if let Err(error) = self.start_task(Task::Check) {
                news.push(News::Failed(error));
            }
        }
        news
    }

    /// Takes in what the server says by itself.
    fn listen(&mut self) -> Result<(), Error> {
        while let Some(incoming) = self.client.receive()? {
            if let (Incoming::KeyChanged, None) = (incoming, self.look_at) {
                self.look_at = Some(self.looks.ask_at(now()));
            }
        }
        Ok(())
    }

    /// The answer to a claim that was sent at this moment, if it has come.
    fn claimed(&mut self, sent: Moment) -> Result<Option<News>, Error> {
        let Some(hold) = self.all.first().filter(|_| self.client.is_open()) else {
            return Err(self.client.unreachable_error(io::ErrorKind::NotConnected));
        };
        let name = || hold.claim.lock().name().clone();
        while let Some(incoming) = self.client.receive()? {
            if let Incoming::LeaseState(state) = incoming {
                return Ok(Some(match state? {
                    LeaseState::Held { .. } => News::Renewed(sent),
                    LeaseState::Released => News::Returned(name()),
                    LeaseState::Lost(loss) => News::Lost(name(), loss),
                }));
            }
        }
        Ok(None)
    }

    /// Makes a claim that has failed like this, or whose answer is overdue, over a fresh connection as
    /// well; what comes of that, the renewer tells. The failure is news, the first time.
    fn claim_again(&mut self, sent: Moment, error: Error) -> Option<News> {
        match self.claiming {
            Claiming::Sent(_) => {
                self.claiming = Claiming::Twice(sent);
                let failed = self.start_task(Task::Renew).err().unwrap_or(error);
                Some(News::Failed(failed))
            }
            Claiming::Twice(_) | Claiming::No | Claiming::Due => None,
        }
    }

    /// When the answer to a claim is overdue.
    fn overdue(&self) -> Option<Moment> {
        match self.claiming {
            // Without a connection there is nothing to wait for.
            Claiming::Sent(sent) if !self.client.is_open() => Some(sent),
            Claiming::Sent(sent) => Some(sent + CLAIM_WITHIN),
            Claiming::No | Claiming::Due | Claiming::Twice(_) => None,
        }
    }

    /// When there is something to do: a claim is overdue, or a look is due.
    pub fn due(&self) -> Option<Moment> {
        // The renewer has to be done first, and wakes us.
        let is_busy = self.renewer.as_ref().is_some_and(Renewer::is_busy);
        let look_at = self.look_at.filter(|_| !is_busy);
        self.overdue().into_iter().chain(look_at).min()
    }

    /// One of these becomes readable when there may be news.
    pub fn wakes(&self) -> impl Iterator<Item = Option<BorrowedFd<'_>>> {
        // Before there is a renewer the server has nothing to say but the answer to a claim.
        let listens = match self.claiming {
            Claiming::Sent(_) | Claiming::Twice(_) => true,
            Claiming::No | Claiming::Due => self.renewer.is_some(),
        };
        let client = self.client.fds().filter(move |_| listens);
        std::iter::once(self.renewer.as_ref().map(AsFd::as_fd)).chain(client.map(Some))
    }

    /// Has the connection back, where it is good: a renewal that is under way with it ends first.
    pub fn rest(&mut self) {
        if !self.client.is_open()
            && let Some(renewer) = &mut self.renewer
            && let Some(completed) = renewer.finish()
        {
            self.client = completed.client;
        }
    }
}
