//! The machine, and the ways of a batch through it.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderMap;
use axum::response::Response;
use crowfly_route::hop::{Counters, Route};
use crowfly_route::place::Place;
use crowfly_route::search;
use crowfly_route::topology::{Device, Oddity, Topology};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::asked::Query;
use super::machines::Machine;
use super::scenes::{Journey, journeys};
use super::server::Page;
use super::shell::quoted;
use super::{reply, work};
use crate::commands::map::MAX_DEVICES;
use crate::commands::route::Plan;
use crate::failure::{Exit, Failure};
use crate::render::{map, map_svg};

const MACHINE_SCHEMA: &str = "crowfly.ui.machine/1";
const ROUTE_SCHEMA: &str = "crowfly.ui.route/1";
/// The longest name of a place, and of a file that is dropped in.
const MAX_NAME: usize = 4096;
/// Where the name of a file that is dropped in stands.
const NAME: &str = "x-crowfly-name";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AboutMachine {
    machine: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AboutRoute {
    machine: Option<String>,
    from: String,
    to: String,
}

/// A machine as the page shows it.
#[derive(Serialize)]
struct Shown<'a> {
    schema: &'static str,
    id: &'a str,
    name: &'a str,
    /// `8 GPUs, 8 network adapters, 8 drives`.
    title: String,
    host: String,
    /// The picture that `crowfly map --svg` draws.
    picture: String,
    /// Places to start and to end at.
    places: Vec<String>,
    journeys: Vec<Journey>,
    oddities: &'a [Oddity],
    command: String,
}

/// The ways between two places, and how each is played.
#[derive(Serialize)]
struct Ways {
    schema: &'static str,
    /// What asks the same on a command line.
    command: String,
    /// What that prints with `--json`.
    document: Box<RawValue>,
    /// For each way of the document, in its order.
    played: Vec<Vec<Beat>>,
}

/// One hop, as it is played.
#[derive(Serialize)]
struct Beat {
    from: String,
    to: String,
    by: String,
    over: Vec<String>,
    /// `63.0 GB/s (link rate)`.
    capacity: Option<String>,
    /// The counters when it is over.
    counters: Counters,
}

/// A machine of those that there are.
pub async fn machine(State(page): State<Arc<Page>>, Query(about): Query<AboutMachine>) -> Response {
    work::answer(page, move |page| {
        let machine = page.machines.look(about.machine.as_deref())?;
        shown(&machine)
    })
    .await
}

/// A machine of a file that is dropped in.
pub async fn given(
    State(page): State<Arc<Page>>,
    headers: HeaderMap,
    content: Result<Bytes, BytesRejection>,
) -> Response {
    let content = match content {
        Ok(content) => content,
        Err(rejection) => {
            let what = format!("the machine could not be read: {}", rejection.body_text());
            let failure = Failure::new("ui-bad-body", Exit::Usage, what);
            return reply::refusal(rejection.status(), &failure);
        }
    };
    let name = headers.get(NAME).and_then(|name| name.to_str().ok());
    let name = name.unwrap_or("machine").to_owned();
    work::answer(page, move |page| {
        bounded(&name, "the name of the file")?;
        let machine = page.machines.take_in(&name, &content)?;
        shown(&machine)
    })
    .await
}

/// The ways between two places.
pub async fn route(State(page): State<Arc<Page>>, Query(about): Query<AboutRoute>) -> Response {
    work::answer(page, move |page| {
        let machine = page.machines.find(about.machine.as_deref())?;
        ways(&machine, &about.from, &about.to)
    })
    .await
}

fn bounded(text: &str, what: &str) -> Result<(), Failure> {
    if text.len() <= MAX_NAME {
        return Ok(());
    }
    let sentence = format!("{what} is longer than {MAX_NAME} bytes");
    Err(Failure::usage(sentence))
}

fn shown(machine: &Machine) -> Result<Response, Failure> {
    let topology = &machine.topology;
    reply::json(&Shown {
        schema: MACHINE_SCHEMA,
        id: &machine.id,
        name: &machine.name,
        title: map::devices(topology),
        host: map::host(topology),
        picture: map_svg::render(topology),
        places: places(topology),
        journeys: journeys(topology),
        oddities: &topology.oddities,
        command: command(&["map"], machine),
    })
}

fn places(topology: &Topology) -> Vec<String> {
    let devices = topology.devices().take(MAX_DEVICES);
    let of_devices = devices.filter_map(|device| {
        let name = topology.name_of(device);
        match device {
            Device::Gpu(index) => Some(format!("gpu:{index}")),
            Device::Nic(_) => Some(format!("nic:{name}")),
            Device::Drive(_) => Some(format!("drive:{name}")),
            Device::Function(_) => None,
        }
    });
    let mut places: Vec<String> = of_devices.collect();
    places.push("host".into());
    if !topology.gpus.is_empty() {
        places.push("remote:gpu:0".into());
    }
    places.push("remote:host".into());
    places
}

fn ways(machine: &Machine, from: &str, to: &str) -> Result<Response, Failure> {
    let (from, to) = (place(from)?, place(to)?);
    let found = search::candidates(&machine.topology, machine.snapshot.as_ref(), &from, &to)?;
    let words = ["route", &from.to_string(), &to.to_string(), "--all"];
    let command = command(&words, machine);
    let plan = Plan::new(from, to, found);
    let played = plan.ways.iter().map(|way| played(&way.route)).collect();
    reply::json(&Ways {
        schema: ROUTE_SCHEMA,
        command,
        document: reply::as_raw(&plan)?,
        played,
    })
}

/// A place. A path is one of the machine's and is taken as it is written: the page opens no file.
fn place(text: &str) -> Result<Place, Failure> {
    bounded(text, "a place")?;
    match text.parse()? {
        Place::File(path) if !path.starts_with('/') => Err(Failure::new(
            "not-a-place",
            Exit::Usage,
            format!("{path} has to be an absolute path"),
        )),
        place => Ok(place),
    }
}

fn played(route: &Route) -> Vec<Beat> {
    let hops = route.hops.iter().zip(route.counters_along());
    hops.map(|(hop, counters)| Beat {
        from: hop.from.to_string(),
        to: hop.to.to_string(),
        by: hop.carrier.to_string(),
        over: hop.crosses.iter().map(|c| c.link.clone()).collect(),
        capacity: hop.capacity.as_ref().map(ToString::to_string),
        counters,
    })
    .collect()
}

/// The command line that looks at the same.
fn command(words: &[&str], machine: &Machine) -> String {
    let choice = machine.choice.iter();
    let choice = choice.flat_map(|(option, value)| [*option, value.as_str()]);
    let words = ["crowfly"].into_iter().chain(words.iter().copied());
    let quoted: Vec<String> = words.chain(choice).map(quoted).collect();
    quoted.join(" ")
}
