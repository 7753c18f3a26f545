//! Obstacles for people: what stands in the way, how we know, what it costs, what to do.

use anstyle::Style;
use crowfly_route::obstacle::{Code, Confidence, Effect, Obstacle};

use super::block::Block;
use super::cell::Cell;
use super::style::{BAD, FAINT, STRONG, WARN};
use super::text::{harmless, wrap};

const INDENT: usize = 10;

/// The obstacles, one below the other, in at most `columns` columns.
pub fn render_all(obstacles: &[Obstacle], columns: usize) -> String {
    obstacles.iter().map(|o| render(o, columns)).collect()
}

/// One obstacle in at most `columns` columns.
pub fn render(obstacle: &Obstacle, columns: usize) -> String {
    let (word, style) = effect(obstacle.effect);
    let first = Cell::styled(style, word).padded(INDENT);
    let code = Cell::styled(STRONG, obstacle.code.as_str());
    let head = format!("{code}  {}", harmless(&obstacle.summary));
    let mut text = wrap(&head, columns, &first, &" ".repeat(INDENT));
    text.push('\n');
    text.push_str(&details(obstacle).render(columns));
    text
}

const fn effect(effect: Effect) -> (&'static str, Style) {
    match effect {
        Effect::Blocks => ("blocks", BAD),
        Effect::Slows => ("slows", WARN),
        Effect::Unproven => ("unproven", WARN),
    }
}

fn details(obstacle: &Obstacle) -> Block {
    let mut block = Block::indented(INDENT);
    for (index, evidence) in obstacle.evidence.iter().enumerate() {
        let label = if index == 0 { "seen" } else { "" };
        let at = Cell::styled(FAINT, format!("{}: ", evidence.at));
        block.line(label, [at, Cell::from(&evidence.shows)]);
    }
    if let Some(cost) = &obstacle.cost {
        block.cost(cost);
    }
    match obstacle.confidence {
        Confidence::Certain => {}
        Confidence::Likely => block.line("sure", ["likely, not certain".into()]),
        Confidence::Possible => block.line("sure", ["possible, not proven".into()]),
    }
    block.steps(&obstacle.fix);
    if obstacle.fix.is_empty() && obstacle.effect != Effect::Unproven {
        block.line("fix", [Cell::styled(FAINT, without_fix(obstacle.code))]);
    }
    block
}

const fn without_fix(code: Code) -> &'static str {
    match code {
        Code::AlreadyCached | Code::AskedFor => "none needed",
        _ => "none known",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use crowfly_route::obstacle::{Cost, Fix};
    use crowfly_route::units::BytesPerSecond;

    use super::*;

    pub fn no_storage_driver() -> Obstacle {
        let fix = Fix::run("Load nvidia-fs", "modprobe nvidia-fs").checked_by("gdscheck -p");
        Obstacle::blocks(
            Code::NoStorageDriver,
            "Neither nvidia-fs nor the kernel's P2PDMA mode is ready for GPUDirect Storage on gpu0, \
             so the data is bounced through host RAM.",
        )
        .seen("/proc/driver/nvidia-fs/version", "absent")
        .seen("/sys/module/nvidia_fs", "absent")
        .fixed_by(fix)
        .fixed_by(Fix::by_hand("Then start the program again"))
    }

    pub fn across_sockets() -> Obstacle {
        let mut obstacle = Obstacle::slows(
            Code::AcrossSockets,
            "nvme0 hangs off numa0, gpu4 off numa1.",
        )
        .seen("/sys/bus/pci/devices/0000:3b:00.0/numa_node", "0")
        .with_confidence(Confidence::Likely);
        obstacle.cost = Some(Cost {
            now: BytesPerSecond::gb(3.1),
            without: BytesPerSecond::gb(7.0),
        });
        obstacle
    }

    #[test]
    fn each_obstacle_shows_evidence_cost_and_fix() {
        let mut unproven = Obstacle::unproven(Code::PathUnreadable, "The path to gpu0 is unknown.");
        unproven = unproven.seen("/sys/bus/pci/devices\u{1b}[2J", "permission denied");
        let all = [no_storage_driver(), across_sockets(), unproven];
        insta::assert_snapshot!(crate::render::plain(&render_all(&all, 80)));
    }
}
