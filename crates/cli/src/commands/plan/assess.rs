//! Does the straight way matter, by how much, from how many servers on, and what caps it.

use clap::Args;
use crowfly_plan::assess::{Assessment, SweepPoint, sizes, sweep};
use crowfly_route::topology::Topology;
use serde::Serialize;

use super::scenario::{ClusterArgs, Setting, SpreadArgs, memory_note};
use super::{Answered, ExportPicture, once};
use crate::failure::Failure;
use crate::render::plan as render;

/// The version of the JSON form of an assessment.
const ASSESS_SCHEMA: &str = "crowfly.plan/1";
const SWEEP_SCHEMA: &str = "crowfly.plan.sweep/1";
const COMPARE_SCHEMA: &str = "crowfly.plan.compare/1";
/// The sizes of the picture's curve.
const CURVE_FROM: u32 = 1;
const CURVE_TO_GPUS: u32 = 131_072;

/// Arguments of the question.
#[derive(Args, Debug)]
pub struct AssessArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    workload: SpreadArgs,
    /// The same question of two servers, each as ID or ID:SERVERS
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["sweep", "from_snapshot"])]
    compare: Vec<String>,
    /// The exchange of gradients on growing numbers of servers, such as servers=1..4096
    #[arg(long, value_name = "servers=A..B", value_parser = range)]
    sweep: Option<(u32, u32)>,
    #[command(flatten)]
    pub export: ExportPicture,
}

fn range(text: &str) -> Result<(u32, u32), String> {
    let ends = text
        .strip_prefix("servers=")
        .and_then(|range| range.split_once(".."));
    let numbers = ends.and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    numbers.ok_or_else(|| "write it as servers=1..4096".to_owned())
}

#[derive(Serialize)]
struct Sweep {
    server: String,
    model: String,
    points: Vec<SweepPoint>,
}

#[derive(Serialize)]
struct Comparison {
    assessments: Vec<Assessment>,
}

/// Answers.
pub fn answer(args: &AssessArgs, machine: Option<&Topology>) -> Result<Answered, Failure> {
    let setting = args.cluster.resolve(machine)?;
    if let [a, b] = &args.compare[..] {
        return compare(args, &setting, a, b);
    }
    let workload = args.workload.resolve(&setting.catalog)?;
    let staged = setting.measured.network_staged.as_ref();
    if let Some((from, to)) = args.sweep {
        workload.check(&setting.cluster)?;
        let points = sweep(&setting.cluster, &workload, staged, &sizes(from, to)?)?;
        let answer = Sweep {
            server: setting.cluster.server.name.clone(),
            model: workload.model.name.clone(),
            points,
        };
        let used = setting
            .cluster
            .server
            .used
            .iter()
            .chain(&workload.model.used);
        let mut sheet = render::sweep(&answer.server, &answer.model, &answer.points);
        sheet.rests_on(once(used.cloned().collect()));
        sheet.notes.extend(setting.notes);
        let answered = Answered::new(SWEEP_SCHEMA, &answer, sheet);
        let title = format!("{} on {}", answer.model, answer.server);
        return Ok(answered.drawn_by(move || render::curve(&title, &answer.points)));
    }
    let answer = Assessment::of(&setting.cluster, &workload, staged)?;
    let mut sheet = render::assessment(&answer);
    sheet.rests_on(once(answer.used.clone()));
    sheet.notes.extend(setting.notes);
    let last = CURVE_TO_GPUS / setting.cluster.server.gpus.max(1);
    let curve = sizes(CURVE_FROM, last.max(CURVE_FROM))?;
    let points = sweep(&setting.cluster, &workload, staged, &curve)?;
    let title = format!("{} on {}", workload.model.name, setting.cluster.server.name);
    let answered = Answered::new(ASSESS_SCHEMA, &answer, sheet);
    Ok(answered.drawn_by(move || render::curve(&title, &points)))
}

fn compare(args: &AssessArgs, setting: &Setting, a: &str, b: &str) -> Result<Answered, Failure> {
    let workload = args.workload.resolve(&setting.catalog)?;
    let staged = setting.measured.network_staged.as_ref();
    let mut assessments = Vec::new();
    for text in [a, b] {
        let cluster = args.cluster.other(setting, text)?;
        assessments.push(Assessment::of(&cluster, &workload, staged)?);
    }
    let mut sheet = render::comparison(&assessments);
    let used = assessments.iter().flat_map(|answer| answer.used.clone());
    sheet.rests_on(once(used.collect()));
    for answer in &assessments {
        sheet.notes.extend(memory_note(&answer.cluster.server));
    }
    let answer = Comparison { assessments };
    let answered = Answered::new(COMPARE_SCHEMA, &answer, sheet);
    Ok(answered.drawn_by(move || render::bars(&answer.assessments)))
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn a_sweep_names_its_quantity_and_both_ends() {
        assert_eq!(range("servers=1..4096"), Ok((1, 4096)));
        for bad in [
            "1..4",
            "servers=1",
            "servers=a..4",
            "servers=-1..4",
            "gpus=1..4",
        ] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }
}
