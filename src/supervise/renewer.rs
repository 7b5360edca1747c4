//! The background thread that renews leases.
//!
//! The thread carries out one task after the other. Each task brings the client, and the
//! thread sends it back with the results; its connection stays open unless it failed.
//! `decide/renewals.rs` decides when a task is due and what follows from its results. So a
//! hung connection delays only this thread, never the main thread, which watches the deadline.
//!
//! Between tasks the main thread has the client. So it receives the server's pushes, and can release the
//! lock without waking another thread. The renewer starts with the first task: a short run never has it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::clock::{Moment, now};
use crate::decide::renewals::{Answer, Task};
use crate::protocol::{Claim, Client, Error, Guard, LeaseState};
use crate::sys;

/// A task, and everything that it needs.
pub struct RenewalTask {
    pub task: Task,
    pub client: Client,
    /// All holds to renew: this run's, and those of surrounding runs.
    pub claims: Vec<Claim>,
    /// Guards of holds that runs elsewhere renew. If there are any, the task only extends these.
    pub guards: Vec<Guard>,
    /// Length of a lease after a renewal.
    pub ttl: Duration,
    pub on_renewal: Option<OnRenewal>,
}

/// Work for the renewer's thread. Only a task returns a result.
pub type RenewerJob = Box<dyn FnOnce() -> Option<CompletedTask> + Send>;

/// Callback that the renewer's thread runs after a renewal of all claims has succeeded, with the time of its request.
pub type OnRenewal = Box<dyn Fn(Moment) + Send>;

/// A task that was carried out, and its results.
pub struct CompletedTask {
    /// The client, which is connected unless its connection failed.
    pub client: Client,
    /// Answers, and the error that ended the task, if any.
    pub answers: Vec<Result<Answer, Error>>,
}

/// Pause before another try to wake the main thread.
const WAKE_AGAIN: Duration = Duration::from_millis(1);

/// Time from which an answer, or the end of a task, is slow.
const SLOW_ANSWER: Duration = Duration::from_millis(500);

/// A running renewer thread.
pub struct Renewer {
    /// Channel for work; `None` only to end the thread.
    orders: Option<Sender<RenewerJob>>,
    completed: Receiver<CompletedTask>,
    wake: Arc<EventFd>,
    /// Longest duration of the current task; `None` if there is none.
    busy: Option<Duration>,
    /// The thread; `None` once it has hung for longer than that.
    thread: Option<JoinHandle<()>>,
}

impl Renewer {
    /// Starts the thread, which runs until the process ends or the `Renewer` is dropped.
    pub fn start() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_flags(flags)?);
        let (orders, ordered) = channel::<RenewerJob>();
        // Only the thread owns a sender, so the main thread never waits for a thread that is gone.
        let (report, completed) = channel();
        let waker = Arc::clone(&wake);
        let thread = sys::start_thread("renewer", sys::USUAL_STACK, move || {
            for completed in ordered.into_iter().filter_map(|call| call()) {
                let is_heard = report.send(completed).is_ok();
                // The answer would be lost if the main thread weren't woken.
                while is_heard && waker.write(1).is_err() {
                    std::thread::sleep(WAKE_AGAIN);
                }
            }
        })?;
        Ok(Self {
            orders: Some(orders),
            completed,
            wake,
            busy: None,
            thread: Some(thread),
        })
    }

    /// Starts a task, whose steps keep to the limit of its client.
    pub fn start_task(&mut self, task: RenewalTask) {
        // Allows for connecting, for the renewal, and for the check after it. The
        // addition keeps the main thread from giving up just before the task ends.
        let patience = task.client.timeout() * 3 + Duration::from_millis(200);
        // If the thread is gone, the task isn't done, and the deadline handles that.
        let is_sent = self.call(Box::new(move || Some(task.carry_out())));
        self.busy = is_sent.then_some(patience);
    }

    /// Lets the thread run `call` before the next task. Returns false if the thread is gone.
    pub fn call(&self, call: RenewerJob) -> bool {
        let orders = self.orders.as_ref();
        orders.is_some_and(|orders| orders.send(call).is_ok())
    }

    /// Returns the results of the task, if it has ended.
    pub fn completed(&mut self) -> Option<CompletedTask> {
        let _ = self.wake.read();
        let completed = self.completed.try_recv().ok()?;
        self.busy = None;
        Some(completed)
    }

    /// Waits for the current task: for the client's limit to connect, and as long again for each of
    /// two answers, but no longer than `within`. Calls `is_slow` if that takes longer than a moment.
    pub fn finish(
        &mut self,
        within: Option<Duration>,
        is_slow: impl FnOnce(),
    ) -> Option<CompletedTask> {
        let patience = self.busy.take()?;
        let patience = within.map_or(patience, |within| patience.min(within));
        let completed = self.completed.recv_timeout(SLOW_ANSWER.min(patience));
        let completed = completed.ok().or_else(|| {
            is_slow();
            let rest = patience.saturating_sub(SLOW_ANSWER);
            self.completed.recv_timeout(rest).ok()
        });
        if completed.is_none() {
            self.thread = None;
        }
        completed
    }
}

/// Lets an idle thread end before the process does. Otherwise the thread might end
/// last, and its cleanup would take the processor from the next holder's command.
impl Drop for Renewer {
    fn drop(&mut self) {
        self.orders = None;
        if self.busy.is_none()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

impl AsFd for Renewer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

impl RenewalTask {
    /// Carries out the task. After a failure its answer may still arrive, so the
    /// next try uses a fresh connection. Answers from before the failure stay valid.
    pub fn carry_out(mut self) -> CompletedTask {
        let mut answers = Vec::new();
        let mut done = self.ask(&mut answers);
        // A fresh connection may go to another node of the cluster.
        if done.as_ref().is_err_and(Error::goes_elsewhere) {
            done = self.ask(&mut answers);
        }
        answers.extend(done.err().map(Err));
        let mut client = self.client;
        client.lift_limit();
        CompletedTask { client, answers }
    }

    fn ask(&mut self, answers: &mut Vec<Result<Answer, Error>>) -> Result<(), Error> {
        let client = &mut self.client;
        client.follow_locks();
        let sent = now();
        client.open()?;
        if !self.guards.is_empty() {
            let states = Guard::extend_all(&self.guards, client)?;
            let claims = self.guards.iter().map(Guard::claim);
            answers.push(Ok(answer(Task::Follow, sent, claims, states)));
            return Ok(());
        }
        let ttl = self.ttl;
        if self.task == Task::Renew {
            let (states, tracked) = Claim::renew_all(&self.claims, client, ttl)?;
            let renewed = answer(Task::Renew, sent, self.claims.iter(), states);
            let left = renewed.shortest();
            let is_over = left.is_none() || renewed.has_lost();
            if let Some(on_renewal) = self.on_renewal.as_ref().filter(|_| !is_over) {
                on_renewal(sent);
            }
            answers.push(Ok(renewed));
            if is_over || (tracked && left.is_some_and(|left| left <= ttl)) {
                return Ok(());
            }
        }
        // The server reports a key's changes once, and only those after a request for
        // tracking. The renewal itself changes the key, so tracking must be requested again.
        let sent = now();
        let states = Claim::check_all(&self.claims, client, ttl)?;
        let checked = answer(Task::Check, sent, self.claims.iter(), states);
        if client.deployment.replication().is_some()
            && checked.shortest().is_some_and(|left| left > ttl)
        {
            // The next renewal replicates the extension that the work has made.
            Claim::renew_all(&self.claims, client, ttl)?;
        }
        answers.push(Ok(checked));
        Ok(())
    }
}

fn answer<'a>(
    task: Task,
    sent: Moment,
    claims: impl Iterator<Item = &'a Claim>,
    states: Vec<LeaseState>,
) -> Answer {
    let names = claims.map(|claim| claim.lock().name().clone());
    Answer {
        task,
        sent,
        states: names.zip(states).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Access, Locks};

    #[test]
    fn the_limit_of_a_task_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let access = Access {
            url: &format!("unix://{}", dir.path().join("nobody").display()),
            timeout: Duration::from_secs(20),
            ..Access::default()
        };
        let locks = Locks::new(&access, None, 0).unwrap();
        let mut client = locks.client();
        client.limit_to(Duration::from_millis(200));
        let task = RenewalTask {
            task: Task::Renew,
            client,
            claims: Vec::new(),
            guards: Vec::new(),
            ttl: Duration::from_secs(1),
            on_renewal: None,
        };
        let done = task.carry_out();
        assert!(matches!(done.answers[..], [Err(_)]));
        assert_eq!(done.client.timeout(), Duration::from_secs(20));
    }
}
