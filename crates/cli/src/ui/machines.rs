//! The machines that can be looked at: the one at hand, those of the catalogue, and those that the
//! reader dropped into the page.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crowfly_plan::catalog::Catalog;
use crowfly_plan::layout::Layout;
use crowfly_route::snapshot::Snapshot;
use crowfly_route::topology::Topology;
use serde::Serialize;

use crate::failure::{Exit, Failure};
use crate::machine;

/// Machines that were dropped in and are kept; an older one is forgotten.
const MAX_GIVEN: usize = 8;
const HERE: &str = "here";
const SERVER: &str = "server:";
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
    /// As [`Machine::choice`].
    pub choice: Option<(&'static str, String)>,
    /// What is seen of it, or why nothing is.
    pub look: Result<(Topology, Option<Snapshot>), Failure>,
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
    here: Result<Arc<Machine>, Failure>,
    here_name: String,
    given: Mutex<VecDeque<Arc<Machine>>>,
}

impl Machines {
    /// With the machine at hand.
    pub fn new(here: Here) -> Self {
        let machine = here.look.map(|(topology, snapshot)| {
            Arc::new(Machine {
                id: HERE.into(),
                name: here.name.clone(),
                topology,
                snapshot,
                choice: here.choice,
            })
        });
        Self {
            here: machine,
            here_name: here.name,
            given: Mutex::new(VecDeque::new()),
        }
    }

    /// The machine of an id, the one at hand where there is none.
    pub fn find(&self, id: Option<&str>) -> Result<Arc<Machine>, Failure> {
        let id = id.unwrap_or(HERE);
        if id == HERE {
            return self.here.as_ref().map(Arc::clone).map_err(Clone::clone);
        }
        if let Some(server) = id.strip_prefix(SERVER) {
            return catalogued(server).map(Arc::new);
        }
        let given = self.given();
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
        let (topology, snapshot) = machine::described(content)?;
        let mut hash = DefaultHasher::new();
        content.hash(&mut hash);
        let machine = Arc::new(Machine {
            id: format!("{FILE}{:016x}", hash.finish()),
            name: name.to_owned(),
            topology,
            snapshot,
            choice: Some(("--from", name.to_owned())),
        });
        let mut given = self.given();
        given.retain(|other| other.id != machine.id);
        given.truncate(MAX_GIVEN - 1);
        given.push_front(Arc::clone(&machine));
        Ok(machine)
    }

    /// Those that the page offers.
    pub fn choices(&self, catalog: &Catalog) -> Vec<Choice> {
        let here = Choice {
            id: HERE.into(),
            name: self.here_name.clone(),
            missing: self.here.as_ref().err().map(|f| f.message().to_owned()),
        };
        let given: Vec<Choice> = self
            .given()
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

    fn given(&self) -> MutexGuard<'_, VecDeque<Arc<Machine>>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
