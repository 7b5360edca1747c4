//! `redlock run`: take the lock, run COMMAND, renew in the background, release.
//!
//! The event loop of a run: this is where lock, child, signals and time meet.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{name, ourselves};
use crate::child::{Child, Reaped};
use crate::cli::{self, OnLost, OnUnreachable};
use crate::clock::{Moment, Timer, now};
use crate::config::Settings;
use crate::exit::Exit;
use crate::lease::Lease;
use crate::lock::{self, Acquired, Claim, Incoming, Kind, Link, Lock, Loss, Release, Who};
use crate::renewer::{News, Renewer};
use crate::report::{self, Voice};
use crate::session::{Action, Event, Session, Terms, Why};
use crate::signal::{SIGCHLD, SIGINT, SIGSTOP, SIGTERM, SIGTSTP, Signals, ends_waiting};
use crate::sys;
use crate::wait::{self, Next, Patience};

/// Runs COMMAND under the lock.
pub fn run(options: cli::Run, settings: &Settings) -> Result<Exit> {
    let lock = Lock::new(&settings.prefix, name(&options.name)?);
    let command = match options.shell.clone() {
        Some(script) => vec!["sh".into(), "-c".into(), script],
        None => options.command.clone(),
    };
    let who = Who {
        command: shortened(&command),
        reason: options.reason.clone(),
        ..ourselves()
    };
    let claim = Claim::new(lock, options.ttl, &who)?;
    let run = Run {
        options,
        settings,
        claim,
        command,
        on_terminal: on_terminal(),
    };
    run.wait_for_the_lock_and_run()
}

/// What a run knows from its start.
struct Run<'a> {
    options: cli::Run,
    settings: &'a Settings,
    claim: Claim,
    command: Vec<OsString>,
    on_terminal: bool,
}

/// A lock that was just taken.
struct Taken {
    link: Link,
    lease: Lease,
    fence: u64,
}

/// How waiting for the lock ended.
enum Waited {
    Taken(Taken),
    Busy(String),
    Signalled(i32),
}

/// How supervising COMMAND ended.
struct Ended {
    exit: Exit,
    /// The connection, where there still is one.
    link: Option<Link>,
}

impl Run<'_> {
    fn wait_for_the_lock_and_run(&self) -> Result<Exit> {
        let started = now();
        // Until the lock is asked for, a signal has nothing to clean up and ends us by itself.
        let opened = Link::open(&self.settings.server);
        let signals = Signals::take(self.on_terminal).context("can't take signals")?;
        let mut timer = Timer::new().context("can't make a timer")?;
        let waited = match opened {
            Ok(link) => self.wait_for_the_lock(link, started, &signals, &mut timer),
            Err(error) => Err(error.into()),
        };
        match waited {
            Ok(Waited::Taken(taken)) => self.run_under(taken, started, &signals, &mut timer),
            Ok(Waited::Busy(line)) => {
                self.voice().note(line);
                Ok(Exit::Busy(self.options.conflict_exit_code))
            }
            Ok(Waited::Signalled(signal)) => Ok(Exit::Signal(signal)),
            Err(error) if self.runs_without(&error) => {
                self.voice()
                    .note(format_args!("{error:#}; running without a lock"));
                let environment = vec![("REDLOCK_NAME", self.name().into())];
                let ended = self.supervise(&environment, None, &signals, &mut timer)?;
                Ok(ended.exit)
            }
            Err(error) => Err(error),
        }
    }

    fn voice(&self) -> Voice {
        self.settings.voice
    }

    fn name(&self) -> &str {
        self.claim.lock().name().as_str()
    }

    fn runs_without(&self, error: &anyhow::Error) -> bool {
        let unreachable = error
            .downcast_ref::<lock::Error>()
            .is_some_and(|error| error.kind == Kind::Unreachable);
        unreachable && self.options.on_unreachable == OnUnreachable::Run
    }

    /// Asks for the lock until it is ours, the patience is over, or a signal comes.
    fn wait_for_the_lock(
        &self,
        link: Link,
        started: Moment,
        signals: &Signals,
        timer: &mut Timer,
    ) -> Result<Waited> {
        let mut attempt = Attempt {
            run: self,
            link: Some(link),
            listening: Listening::No,
            unanswered: false,
            signals,
            timer,
        };
        let waited = attempt.wait(started);
        // Whatever ended it: a request whose answer nobody read may have taken the lock. The same
        // connection, where it is good, keeps the two in their order.
        if attempt.unanswered && !matches!(waited, Ok(Waited::Taken(_))) {
            let released = self.release(attempt.link.take());
            self.voice()
                .detail(format_args!("gave the lock up: {released:?}"));
        }
        waited
    }

    /// Runs COMMAND under the lock and releases it after that.
    fn run_under(
        &self,
        taken: Taken,
        started: Moment,
        signals: &Signals,
        timer: &mut Timer,
    ) -> Result<Exit> {
        let Taken { link, lease, fence } = taken;
        let waited = now().since(started);
        self.voice().detail(format_args!(
            "lock \"{}\" acquired after {}, fence {fence}",
            self.name(),
            report::rough(waited)
        ));
        // A signal that came between the answer and here starts nothing.
        while let Some(arrived) = signals.next()? {
            if ends_waiting(arrived.signal) {
                self.release_or_say(Some(link));
                return Ok(Exit::Signal(arrived.signal));
            }
        }
        let ended = self.supervise(
            &self.environment(fence, waited),
            Some((link, lease)),
            signals,
            timer,
        )?;
        self.release_or_say(ended.link);
        Ok(ended.exit)
    }

    /// What COMMAND finds in its environment.
    fn environment(&self, fence: u64, waited: Duration) -> Vec<(&'static str, OsString)> {
        let token = OsString::from_vec(self.claim.token().to_vec());
        let mut held = std::env::var_os("REDLOCK_HELD").unwrap_or_default();
        if !held.is_empty() {
            held.push(" ");
        }
        held.push(self.name());
        held.push("=");
        held.push(&token);
        vec![
            ("REDLOCK_NAME", self.name().into()),
            ("REDLOCK_TOKEN", token),
            ("REDLOCK_FENCE", fence.to_string().into()),
            ("REDLOCK_WAITED_MS", waited.as_millis().to_string().into()),
            ("REDLOCK_HELD", held),
        ]
    }

    /// Starts COMMAND and does what the session decides until it has ended.
    fn supervise(
        &self,
        environment: &[(&'static str, OsString)],
        held: Option<(Link, Lease)>,
        signals: &Signals,
        timer: &mut Timer,
    ) -> Result<Ended> {
        let (link, lease) = held.unzip();
        let child = match Child::spawn(
            &self.command,
            environment,
            !self.on_terminal,
            signals.sigchld_ignored,
        ) {
            Ok(child) => child,
            Err(error) => {
                let program = self.command.first().cloned().unwrap_or_default();
                report::error(format_args!("can't run {}: {error}", program.display()));
                let exit = match error.kind() {
                    io::ErrorKind::NotFound => Exit::NotFound,
                    _ => Exit::CannotExecute,
                };
                return Ok(Ended { exit, link });
            }
        };
        let terms = Terms {
            on_terminal: self.on_terminal,
            leads_session: nix::unistd::getsid(None) == Ok(nix::unistd::getpid()),
            only_warn: self.options.on_lost == OnLost::Warn,
            kill_after: self.options.kill_after,
            timeout_at: self.options.timeout.map(|timeout| now() + timeout),
        };
        let supervision = Supervision {
            run: self,
            session: Session::new(terms, lease),
            child,
            keeper: link.map_or(Keeper::Nobody, Keeper::Idle),
            trouble: Trouble::None,
            signals,
            timer,
        };
        supervision.until_the_end()
    }

    /// Gives the lock back, over a fresh connection where the old one is broken.
    fn release(&self, link: Option<Link>) -> Result<Release, lock::Error> {
        let within = self.settings.server.timeout;
        let over = |mut link: Link| self.claim.release(&mut link, within);
        match link.map(over) {
            Some(Ok(release)) => Ok(release),
            Some(Err(_)) | None => Link::open(&self.settings.server).and_then(over),
        }
    }

    /// Gives the lock back. A failure is a line on stderr and nothing else: the lock ends with its
    /// TTL.
    fn release_or_say(&self, link: Option<Link>) {
        let name = self.name();
        match self.release(link) {
            Ok(Release::Released) => self
                .voice()
                .detail(format_args!("lock \"{name}\" released")),
            // Somebody's doing: if it was noticed while COMMAND ran, it has been said.
            Ok(Release::NotOurs(_)) => self
                .voice()
                .detail(format_args!("lock \"{name}\" was not ours any more")),
            Err(error) => {
                let ttl = report::rough(self.claim.ttl());
                self.voice().note(format_args!(
                    "can't release lock \"{name}\", it ends by itself within {ttl}: {error}"
                ));
            }
        }
    }
}

/// Whether releases are announced to us.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listening {
    No,
    Asked,
    Yes,
    /// Not permitted here.
    Never,
}

/// Waiting for the lock.
struct Attempt<'a> {
    run: &'a Run<'a>,
    link: Option<Link>,
    listening: Listening,
    /// An acquire was sent whose answer hasn't been read.
    unanswered: bool,
    signals: &'a Signals,
    timer: &'a mut Timer,
}

/// What a waiter woke up for.
enum Woken {
    /// Something came in on the connection.
    Incoming(Incoming),
    /// The moment it waited for.
    Time,
    /// A signal that ends the wait.
    Signal(i32),
}

/// After how long a user is told what the wait is for.
const TELL_AFTER: Duration = Duration::from_secs(1);

/// The pause before another try to reach a server that was reached before.
const RECONNECT: Duration = Duration::from_millis(500);

impl Attempt<'_> {
    fn wait(&mut self, started: Moment) -> Result<Waited> {
        let run = self.run;
        let patience = match (run.options.no_wait, run.options.wait) {
            (true, _) => Patience::Until(started),
            (false, Some(wait)) => Patience::Until(started + wait),
            (false, None) => Patience::ForEver,
        };
        let mut told = false;
        let mut too_late = 0;
        // When the server was last heard of; it may go away for a while once it has answered.
        let mut heard: Option<Moment> = None;
        loop {
            let asked = now();
            let (holder, left) = match self.ask() {
                Ok(Asked::Held { sent, fence }) => {
                    let lease = Lease::new(sent, run.options.ttl, run.options.kill_after);
                    if now() < lease.stop_at() {
                        let link = self.link.take().context("the connection is gone")?;
                        return Ok(Waited::Taken(Taken { link, lease, fence }));
                    }
                    // The answer took so long that the lease is as good as over. Asking again
                    // lengthens it, if the server has become faster.
                    self.unanswered = true;
                    too_late += 1;
                    if too_late < 3 {
                        continue;
                    }
                    let ttl = humantime::format_duration(run.options.ttl);
                    let line =
                        format!("{} answers too slowly for --ttl {ttl}", run.settings.server);
                    return Err(lock::Error::new(Kind::Unreachable, line).into());
                }
                Ok(Asked::Busy { holder, left }) => (holder, left),
                Ok(Asked::Signal(signal)) => return Ok(Waited::Signalled(signal)),
                Err(error) => {
                    let lasting = heard.is_none_or(|heard| asked.since(heard) > run.options.ttl);
                    if lasting || error.kind != Kind::Unreachable {
                        return Err(error.into());
                    }
                    self.disconnect();
                    run.voice().detail(&error);
                    if let Some(signal) = self.pause(asked + RECONNECT)? {
                        return Ok(Waited::Signalled(signal));
                    }
                    match patience {
                        Patience::Until(end) if now() >= end => return Err(error.into()),
                        Patience::Until(_) | Patience::ForEver => continue,
                    }
                }
            };
            heard = Some(now());
            let line = report::held(run.claim.lock().name(), holder.as_ref(), left);
            let listening = matches!(self.listening, Listening::Yes);
            let ask_at = match wait::next(patience, listening, left, now(), dice()) {
                Next::GiveUp if run.options.no_wait => {
                    return Ok(Waited::Busy(format!("{line}; --wait queues for it")));
                }
                Next::GiveUp => return Ok(Waited::Busy(format!("gave up waiting: {line}"))),
                Next::AskAt(at) => at,
            };
            if self.listening == Listening::No {
                // Asked once more when the subscription stands, so no release falls in between.
                self.listen();
            }
            let tell_at = (!told).then_some(started + TELL_AFTER);
            match self.idle(ask_at, tell_at)? {
                Idle::Ask => {}
                Idle::Tell => {
                    told = true;
                    run.voice().note(format_args!("waiting: {line}"));
                }
                Idle::Signal(signal) => return Ok(Waited::Signalled(signal)),
            }
        }
    }

    /// Sends an acquire and waits for its answer.
    fn ask(&mut self) -> Result<Asked, lock::Error> {
        let link = match &mut self.link {
            Some(link) => link,
            None => self.link.insert(Link::open(&self.run.settings.server)?),
        };
        let sent = now();
        self.unanswered = true;
        link.send(self.run.claim.acquire())?;
        loop {
            match self.next(sent + self.run.settings.server.timeout)? {
                Woken::Incoming(Incoming::Answer(answer)) => {
                    self.unanswered = false;
                    return Ok(match Claim::acquired(answer)? {
                        Acquired::Held { fence } => Asked::Held { sent, fence },
                        Acquired::Busy { holder, left } => Asked::Busy { holder, left },
                    });
                }
                Woken::Incoming(incoming) => self.note(&incoming),
                Woken::Signal(signal) => return Ok(Asked::Signal(signal)),
                Woken::Time => {
                    let error = io::Error::from(io::ErrorKind::TimedOut);
                    return Err(self.run.settings.server.unreachable(&error));
                }
            }
        }
    }

    fn listen(&mut self) {
        if let Some(link) = &mut self.link {
            self.listening = Listening::Asked;
            if link.listen(self.run.claim.lock().channel()).is_err() {
                self.disconnect();
            }
        }
    }

    /// Gives the connection up; the next acquire makes a new one.
    fn disconnect(&mut self) {
        self.link = None;
        self.listening = Listening::No;
    }

    fn note(&mut self, incoming: &Incoming) {
        match incoming {
            Incoming::Listening => self.listening = Listening::Yes,
            Incoming::Deaf => self.listening = Listening::Never,
            Incoming::Answer(_) | Incoming::Notified => {}
        }
    }

    /// Waits until it is time to ask again: the moment has come, a release was announced, or the
    /// subscription has just been confirmed.
    fn idle(&mut self, ask_at: Moment, tell_at: Option<Moment>) -> Result<Idle> {
        let until = tell_at.map_or(ask_at, |tell_at| tell_at.min(ask_at));
        Ok(match self.next(until) {
            Ok(Woken::Incoming(incoming)) => {
                self.note(&incoming);
                Idle::Ask
            }
            Ok(Woken::Time) if until < ask_at => Idle::Tell,
            Ok(Woken::Time) => Idle::Ask,
            Ok(Woken::Signal(signal)) => Idle::Signal(signal),
            Err(error) => {
                self.run.voice().detail(&error);
                self.disconnect();
                // Not everybody comes back at the same moment.
                match self.pause(now() + RECONNECT.mul_f64(dice()))? {
                    Some(signal) => Idle::Signal(signal),
                    None => Idle::Ask,
                }
            }
        })
    }

    /// Does nothing until a moment, or a signal that ends the wait.
    fn pause(&mut self, until: Moment) -> Result<Option<i32>> {
        Ok(match self.next(until)? {
            Woken::Signal(signal) => Some(signal),
            Woken::Incoming(_) | Woken::Time => None,
        })
    }

    /// The next thing that happens, at the latest the moment.
    fn next(&mut self, until: Moment) -> Result<Woken, lock::Error> {
        let internal =
            |error: io::Error| lock::Error::new(Kind::Internal, format!("can't wait: {error}"));
        self.timer
            .set(Some(until))
            .map_err(|error| internal(error.into()))?;
        loop {
            if let Some(link) = &mut self.link
                && let Some(incoming) = link.receive()?
            {
                return Ok(Woken::Incoming(incoming));
            }
            while let Some(arrived) = self.signals.next().map_err(internal)? {
                if ends_waiting(arrived.signal) {
                    return Ok(Woken::Signal(arrived.signal));
                }
                if arrived.signal == SIGTSTP {
                    suspend().map_err(internal)?;
                }
            }
            if now() >= until {
                return Ok(Woken::Time);
            }
            let link = self.link.as_ref().map(AsFd::as_fd);
            sleep([Some(self.signals.as_fd()), Some(self.timer.as_fd()), link])
                .map_err(internal)?;
        }
    }
}

/// What asking for the lock brought.
enum Asked {
    Held {
        sent: Moment,
        fence: u64,
    },
    Busy {
        holder: Option<lock::Holder>,
        left: Option<Duration>,
    },
    Signal(i32),
}

/// What ended an idle time.
enum Idle {
    Ask,
    Tell,
    Signal(i32),
}

/// Who keeps the connection.
enum Keeper {
    /// The main thread; no renewal has been due yet.
    Idle(Link),
    Renewer(Renewer),
    /// There is no lock.
    Nobody,
}

/// What is known of a lock's trouble, for the messages.
enum Trouble {
    None,
    Unreachable(lock::Error),
    Lost(Loss),
}

/// A COMMAND that runs.
struct Supervision<'a> {
    run: &'a Run<'a>,
    session: Session,
    child: Child,
    keeper: Keeper,
    trouble: Trouble,
    signals: &'a Signals,
    timer: &'a mut Timer,
}

impl Supervision<'_> {
    fn until_the_end(mut self) -> Result<Ended> {
        loop {
            if let Some(exit) = self.happened(Event::Tick)? {
                return Ok(self.end(exit));
            }
            if let Some(exit) = self.reap()? {
                return Ok(self.end(exit));
            }
            self.timer.set(self.session.due())?;
            let renewer = match &self.keeper {
                Keeper::Renewer(renewer) => Some(renewer.as_fd()),
                Keeper::Idle(_) | Keeper::Nobody => None,
            };
            sleep([
                Some(self.signals.as_fd()),
                Some(self.timer.as_fd()),
                renewer,
            ])?;
            while let Some(arrived) = self.signals.next()? {
                // SIGCHLD only wakes us: what ended is seen by reaping.
                if arrived.signal != SIGCHLD
                    && let Some(exit) = self.happened(Event::Signal(arrived))?
                {
                    return Ok(self.end(exit));
                }
            }
            while let Some(news) = self.news() {
                let event = self.told(news);
                if let Some(exit) = self.happened(event)? {
                    return Ok(self.end(exit));
                }
            }
        }
    }

    /// Takes the ended children in.
    fn reap(&mut self) -> Result<Option<Exit>> {
        while let Some(reaped) = self.child.reap()? {
            let exit = match reaped {
                Reaped::Child(status) => self.happened(Event::Ended(status))?,
                Reaped::Tree => return self.happened(Event::TreeEnded),
            };
            if exit.is_some() {
                return Ok(exit);
            }
        }
        Ok(None)
    }

    fn news(&self) -> Option<News> {
        match &self.keeper {
            Keeper::Renewer(renewer) => renewer.news(),
            Keeper::Idle(_) | Keeper::Nobody => None,
        }
    }

    /// The renewer's news as an event; what only matters for messages is kept.
    fn told(&mut self, news: News) -> Event {
        match news {
            News::Renewed(sent) => {
                self.run
                    .voice()
                    .detail(format_args!("lock \"{}\" renewed", self.run.name()));
                self.trouble = Trouble::None;
                Event::Renewed(sent)
            }
            News::Failed(error) => {
                self.run
                    .voice()
                    .detail(format_args!("renewal failed: {error}"));
                self.trouble = Trouble::Unreachable(error);
                Event::RenewalFailed
            }
            News::Lost(loss) => {
                self.trouble = Trouble::Lost(loss);
                Event::Lost
            }
        }
    }

    /// Lets the session decide about an event, and does it.
    fn happened(&mut self, event: Event) -> Result<Option<Exit>> {
        for action in self.session.on_event(event, now()) {
            match action {
                Action::Forward(signal) => {
                    if matches!(signal, SIGINT | SIGTERM) {
                        Child::adopt_orphans();
                    }
                    self.child.forward(signal);
                }
                Action::Suspend => suspend()?,
                Action::Renew => self.renew()?,
                Action::Warn => self.run.voice().note(format_args!(
                    "{}; the command goes on without it",
                    self.loss()
                )),
                Action::Stop(why) => {
                    self.say_why(why, "stopping the command");
                    Child::adopt_orphans();
                    self.child.stop();
                }
                Action::Kill(why) => {
                    self.say_why(why, "killing the command");
                    Child::adopt_orphans();
                    self.child.kill();
                }
                Action::Finish(exit) => return Ok(Some(exit)),
            }
        }
        Ok(None)
    }

    /// Has the lock renewed; the first time the renewer is started for it.
    fn renew(&mut self) -> Result<()> {
        let keeper = std::mem::replace(&mut self.keeper, Keeper::Nobody);
        self.keeper = match keeper {
            Keeper::Idle(link) => {
                let renewer =
                    Renewer::start(link, &self.run.settings.server, self.run.claim.clone());
                Keeper::Renewer(renewer.context("can't start the renewing thread")?)
            }
            other => other,
        };
        if let Keeper::Renewer(renewer) = &self.keeper {
            renewer.renew();
        }
        Ok(())
    }

    fn say_why(&self, why: Why, what: &str) {
        match why {
            Why::Lost => report::error(format_args!("{}; {what}", self.loss())),
            Why::Timeout => {
                let timeout = self.run.options.timeout.unwrap_or_default();
                self.run.voice().note(format_args!(
                    "timed out after {}; {what}",
                    humantime::format_duration(timeout)
                ));
            }
            Why::Signal => self.run.voice().detail(what),
        }
    }

    /// What happened to the lock, in words.
    fn loss(&self) -> String {
        let name = self.run.name();
        match &self.trouble {
            Trouble::Lost(Loss {
                forced_by: Some(by),
                ..
            }) => {
                format!("lock \"{name}\" was taken by force by {}", report::by(by))
            }
            Trouble::Lost(Loss {
                holder: Some(holder),
                ..
            }) => {
                format!(
                    "lock \"{name}\" was lost, {} holds it now",
                    report::by(&holder.who)
                )
            }
            Trouble::Lost(_) => {
                format!("lock \"{name}\" was lost: its key is gone or was overwritten")
            }
            Trouble::Unreachable(error) => {
                format!("lock \"{name}\" could not be renewed in time: {error}")
            }
            Trouble::None => format!(
                "lock \"{name}\" was not renewed in time: redlock or this machine stood still"
            ),
        }
    }

    /// The child is reaped: the connection comes back.
    fn end(self, exit: Exit) -> Ended {
        let link = match self.keeper {
            Keeper::Idle(link) => Some(link),
            Keeper::Renewer(renewer) => renewer.stop(),
            Keeper::Nobody => None,
        };
        Ended { exit, link }
    }
}

/// Stops ourselves, until somebody lets us go on.
fn suspend() -> io::Result<()> {
    sys::kill(nix::unistd::getpid().as_raw(), SIGSTOP)
}

/// Sleeps until one of the descriptors has something to read.
fn sleep(fds: [Option<BorrowedFd<'_>>; 3]) -> io::Result<()> {
    let mut fds: Vec<PollFd> = fds
        .into_iter()
        .flatten()
        .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
        .collect();
    match poll(&mut fds, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether we have a terminal: then the shell's job control sees us and COMMAND as one job.
fn on_terminal() -> bool {
    std::fs::File::open("/dev/tty").is_ok()
}

/// A number in 0..1.
fn dice() -> f64 {
    getrandom::u32().map_or(0.5, |random| f64::from(random) / f64::from(u32::MAX))
}

/// The most of a command line that is stored for others to see, in bytes.
const SHOWN: usize = 2000;

/// The command for others to see: as text, and not endless.
fn shortened(command: &[OsString]) -> Vec<String> {
    let mut room = SHOWN;
    let mut words = Vec::new();
    for word in command {
        let word = word.to_string_lossy();
        if word.len() > room {
            words.push(word.chars().take(room / 4).chain(['…']).collect());
            break;
        }
        room -= word.len();
        words.push(word.into_owned());
    }
    words
}
