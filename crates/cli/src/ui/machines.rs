//! The machines that can be looked at: the one at hand, those of the catalogue, and those that the
//! reader dropped into the page.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crowfly_plan::catalog::Catalog;
use crowfly_plan::layout::Layout;
use crowfly_route::snapshot::Snapshot;
use crowfly_route::topology::Topology;
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::machine::{self, DescribedMachineArgs};

/// Machines that were dropped in and are kept; an older one is forgotten.
const MAX_GIVEN: usize = 8;
/// A live machine that was looked at longer ago is looked at again when somebody wants to see it.
const FRESH: Duration = Duration::from_secs(5);
const HERE: &str = "here";
/// How the ids of servers of the catalogue begin.
pub const SERVER: &str = "server:";
const FILE: &str = "file:";

/// A machine.
#[derive(Debug)]
pub struct Machine {
    /// How the page asks for it again.
    pub id: String,
    /// What it is called.
    pub name: String,
    /// Its graph.
    pub topology: Topology,
    /// What that was decoded from, where it is a snapshot.
    pub snapshot: Option<Snapshot>,
    /// What a command line says to look at it; `None` for the machine at hand.
    pub choice: Option<(&'static str, String)>,
}

/// The machine that the page starts with.
#[derive(Debug)]
pub struct Here {
    /// What it is called.
    pub name: String,
    /// How it was chosen.
    pub args: DescribedMachineArgs,
    /// What was seen of it, or why nothing was.
    pub look: Look,
}

/// What is seen of a machine.
pub type Look = Result<(Topology, Option<Snapshot>), Failure>;

impl Here {
    fn machine(&self, look: Look) -> Result<Arc<Machine>, Failure> {
        let (topology, snapshot) = look?;
        Ok(Arc::new(Machine {
            id: HERE.into(),
            name: self.name.clone(),
            topology,
            snapshot,
            choice: self.args.choice(),
        }))
    }
}

/// A machine among others.
#[derive(Debug, Serialize)]
pub struct Choice {
    id: String,
    name: String,
    /// Why there is nothing to see of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing: Option<String>,
}

/// All machines.
#[derive(Debug)]
pub struct Machines {
    origin: Here,
    here: Mutex<(Instant, Result<Arc<Machine>, Failure>)>,
    given: Mutex<VecDeque<Arc<Machine>>>,
}

impl Machines {
    /// With the machine at hand.
    pub fn new(here: Here) -> Self {
        let machine = here.machine(here.look.clone());
        Self {
            origin: here,
            here: Mutex::new((Instant::now(), machine)),
            given: Mutex::new(VecDeque::new()),
        }
    }

    /// As [`Machines::find`]; the machine at hand is looked at again where it is live.
    pub fn look(&self, id: Option<&str>) -> Result<Arc<Machine>, Failure> {
        if id.unwrap_or(HERE) != HERE || self.origin.args.choice().is_some() {
            return self.find(id);
        }
        let mut here = locked(&self.here);
        if here.0.elapsed() > FRESH {
            *here = (Instant::now(), self.origin.machine(self.origin.args.look()));
        }
        here.1.clone()
    }

    /// The machine of an id, the one at hand where there is none.
    pub fn find(&self, id: Option<&str>) -> Result<Arc<Machine>, Failure> {
        let id = id.unwrap_or(HERE);
        if id == HERE {
            return locked(&self.here).1.clone();
        }
        if let Some(server) = id.strip_prefix(SERVER) {
            return catalogued(server).map(Arc::new);
        }
        let given = locked(&self.given);
        let found = given.iter().find(|machine| machine.id == id);
        found.map(Arc::clone).ok_or_else(|| {
            let what = format!("the page has no machine `{id}`");
            Failure::new("ui-no-such-machine", Exit::NoInput, what).hint(
                "a file that was dropped in is kept until eight others were: drop it in again",
            )
        })
    }

    /// Takes in a file in which a machine is described.
    pub fn take_in(&self, name: &str, content: &[u8]) -> Result<Arc<Machine>, Failure> {
        let (topology, snapshot) = machine::described(name, content)?;
        let mut hash = DefaultHasher::new();
        content.hash(&mut hash);
        let machine = Arc::new(Machine {
            id: format!("{FILE}{:016x}", hash.finish()),
            name: name.to_owned(),
            topology,
            snapshot,
            choice: Some(("--from", name.to_owned())),
        });
        let mut given = locked(&self.given);
        given.retain(|other| other.id != machine.id);
        given.truncate(MAX_GIVEN - 1);
        given.push_front(Arc::clone(&machine));
        Ok(machine)
    }

    /// Those that the page offers.
    pub fn choices(&self, catalog: &Catalog) -> Vec<Choice> {
        let found = locked(&self.here).1.clone();
        let here = Choice {
            id: HERE.into(),
            name: self.origin.name.clone(),
            missing: found.err().map(|failure| failure.message().to_owned()),
        };
        let given: Vec<Choice> = locked(&self.given)
            .iter()
            .map(|machine| Choice {
                id: machine.id.clone(),
                name: machine.name.clone(),
                missing: None,
            })
            .collect();
        let servers = catalog.servers.iter().map(|entry| Choice {
            id: format!("{SERVER}{}", entry.id),
            name: entry.id.clone(),
            missing: Layout::of(catalog, &entry.id)
                .err()
                .map(|error| error.to_string()),
        });
        std::iter::once(here).chain(given).chain(servers).collect()
    }
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

fn catalogued(server: &str) -> Result<Machine, Failure> {
    let layout = Layout::of(&Catalog::built_in(), server)?;
    Ok(Machine {
        id: format!("{SERVER}{server}"),
        name: server.to_owned(),
        topology: layout.topology,
        snapshot: None,
        choice: Some(("--server", server.to_owned())),
    })
}
