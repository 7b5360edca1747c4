//! A line to a server on which things go wrong for as long as a fault lasts. Unlike the proxy of single
//! faults it knows nothing of what passes, and remembers nothing of it, so that it lasts for hours.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Injected, ms};
use crate::support::Dice;
use crate::support::proxy::reset;

/// What the line does with connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Flow {
    Open,
    /// What is sent waits until the line is open again, as packets do that are sent again and again.
    Held,
    /// What is sent is lost, and nobody is told: these connections are dead, also when it is over.
    Silent,
    /// New connections are refused.
    Refused,
    /// Requests arrive; in place of the answer the connection is reset.
    NoReplies,
}

/// A line to one server, gone when dropped.
pub struct Line {
    pub port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    server: AtomicU16,
    flow: AtomicU8,
    /// How long each part takes in each direction, in milliseconds.
    delay: AtomicU64,
    has_ended: AtomicBool,
    pairs: Mutex<Vec<Arc<Pair>>>,
}

/// A client's connection, and the one to the server that belongs to it.
struct Pair {
    near: TcpStream,
    far: Option<TcpStream>,
    is_silent: AtomicBool,
    has_ended: AtomicBool,
}

impl Line {
    /// A line that ends nowhere at first.
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            server: AtomicU16::new(0),
            flow: AtomicU8::new(Flow::Open as u8),
            delay: AtomicU64::new(0),
            has_ended: AtomicBool::new(false),
            pairs: Mutex::default(),
        });
        let accepting = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.accept(&listener))
        };
        Self {
            port,
            shared,
            accepting: Some(accepting),
        }
    }

    /// From now on it leads to this port.
    pub fn lead_to(&self, port: u16) {
        self.shared.server.store(port, Ordering::Relaxed);
    }

    pub fn set_flow(&self, flow: Flow) {
        self.shared.flow.store(flow as u8, Ordering::Relaxed);
        let pairs = self.shared.pairs();
        for pair in pairs.iter() {
            if flow == Flow::Silent {
                pair.is_silent.store(true, Ordering::Relaxed);
            } else if pair.is_silent.load(Ordering::Relaxed) {
                pair.reset();
            }
        }
    }

    pub fn set_delay(&self, ms: u64) {
        self.shared.delay.store(ms, Ordering::Relaxed);
    }

    /// Begins a fault of a line.
    pub fn disturb(&self, fault: &str, dice: &mut Dice) -> Injected {
        let (flow, what, most) = match fault {
            "line reset" => {
                self.cut();
                return Injected::at_once("all connections are reset");
            }
            "line slow" => {
                let delay = dice.between(5, 400);
                self.set_delay(delay.unsigned_abs());
                let what = format!("the line takes {delay} ms each way");
                return Injected::new(what, ms(dice, 500, 5000));
            }
            "line held" => (Flow::Held, "what is sent arrives later", 3000),
            "line silent" => (Flow::Silent, "what is sent is lost", 3000),
            "line refused" => (Flow::Refused, "new connections are refused", 2000),
            "replies lost" => (Flow::NoReplies, "in place of replies come resets", 500),
            _ => unreachable!("no such fault: {fault}"),
        };
        self.set_flow(flow);
        Injected::new(what, ms(dice, 50, most))
    }

    /// All is as it should be.
    pub fn open(&self) {
        self.set_flow(Flow::Open);
        self.set_delay(0);
    }

    /// Resets all connections; new ones are accepted.
    pub fn cut(&self) {
        self.shared.pairs().iter().for_each(|pair| pair.reset());
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
        // So that the thread that accepts looks.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        self.cut();
    }
}

impl Shared {
    fn pairs(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Pair>>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is(&self, flow: Flow) -> bool {
        self.flow.load(Ordering::Relaxed) == flow as u8
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for near in listener.incoming().flatten() {
            if self.has_ended.load(Ordering::Relaxed) {
                return;
            }
            let far = self.connect();
            if far.is_none() && !self.is(Flow::Silent) {
                reset(&near);
                continue;
            }
            let pair = Arc::new(Pair {
                near,
                is_silent: AtomicBool::new(far.is_none()),
                far,
                has_ended: AtomicBool::new(false),
            });
            let mut pairs = self.pairs();
            pairs.retain(|pair| !pair.has_ended.load(Ordering::Relaxed));
            pairs.push(Arc::clone(&pair));
            drop(pairs);
            self.serve(&pair);
        }
    }

    fn connect(&self) -> Option<TcpStream> {
        if self.is(Flow::Silent) || self.is(Flow::Refused) {
            return None;
        }
        let server = self.server.load(Ordering::Relaxed);
        let far = TcpStream::connect(("127.0.0.1", server)).ok()?;
        let _ = far.set_nodelay(true);
        Some(far)
    }

    /// Starts a thread for each direction.
    fn serve(self: &Arc<Self>, pair: &Arc<Pair>) {
        let Some(far) = &pair.far else {
            return;
        };
        let _ = pair.near.set_nodelay(true);
        let streams = [&pair.near, far].map(TcpStream::try_clone);
        let [Ok(near), Ok(far)] = streams else {
            pair.reset();
            return;
        };
        let (near_too, far_too) = (near.try_clone(), far.try_clone());
        let (Ok(near_too), Ok(far_too)) = (near_too, far_too) else {
            pair.reset();
            return;
        };
        for (from, to, is_reply) in [(near, far, false), (far_too, near_too, true)] {
            let (shared, pair) = (Arc::clone(self), Arc::clone(pair));
            std::thread::spawn(move || shared.pass(&pair, from, to, is_reply));
        }
    }

    fn pass(&self, pair: &Pair, mut from: TcpStream, mut to: TcpStream, is_reply: bool) {
        let mut bytes = [0; 16384];
        loop {
            let read = from.read(&mut bytes);
            self.wait(pair);
            if pair.is_silent.load(Ordering::Relaxed) {
                if matches!(read, Ok(1..)) {
                    continue;
                }
                return;
            }
            let Ok(read) = read else {
                // What was under way is dropped with a connection that was reset.
                pair.reset();
                return;
            };
            if read == 0 {
                // A connection of which one side has ended isn't used any more by any client of Redis.
                let _ = to.shutdown(Shutdown::Write);
                pair.has_ended.store(is_reply, Ordering::Relaxed);
                return;
            }
            let is_lost = is_reply && self.is(Flow::NoReplies);
            if is_lost || to.write_all(&bytes[..read]).is_err() {
                pair.reset();
                return;
            }
        }
    }

    /// Waits for as long as what has come is under way.
    fn wait(&self, pair: &Pair) {
        let delay = self.delay.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(delay));
        while self.is(Flow::Held) && !pair.has_ended.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Pair {
    fn reset(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        reset(&self.near);
        if let Some(far) = &self.far {
            reset(far);
        }
    }
}
