//! What was tried out, one line each.

use crate::commands::doctor::probes::{Probes, Tried};
use crate::render::style::{BAD, GOOD, STRONG, paint};
use crate::render::text::{harmless, wrap};

/// The section; each line says what was tried, whether it works, and what was seen.
pub fn render(probes: &Probes, columns: usize) -> String {
    let mut text = format!("\n{}\n", paint(STRONG, "Tried out in a child process"));
    for runtime in &probes.gpus {
        if let Some(ended) = &runtime.ended {
            text.push_str(&line(&runtime.runtime, false, ended, columns));
        }
        for Tried { what, works, says } in &runtime.steps {
            let what = format!("{}: {what}", runtime.runtime);
            text.push_str(&line(&what, *works, says, columns));
        }
    }
    for Tried { what, works, says } in &probes.windows {
        text.push_str(&line(what, *works, says, columns));
    }
    for mounted in &probes.storage {
        let what = format!("{} ({})", mounted.mount, mounted.file_system);
        let why = mounted.obstacles.first();
        let says = why.map_or(mounted.mode.to_owned(), |obstacle| {
            format!("{}: {}", mounted.mode, obstacle.summary)
        });
        text.push_str(&line(&what, mounted.obstacles.is_empty(), &says, columns));
    }
    text
}

fn line(what: &str, works: bool, says: &str, columns: usize) -> String {
    let mark = if works { "yes" } else { "no" };
    let line = format!("{mark:<4}{what}: {says}");
    let line = wrap(&harmless(&line), columns, "  ", "        ");
    let style = if works { GOOD } else { BAD };
    format!("{}\n", line.replacen(mark, &paint(style, mark), 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::probes::OfRuntime;

    #[test]
    fn every_line_fits_and_says_whether_it_works() {
        let tried = |what: &str, works, says: &str| Tried {
            what: what.into(),
            works,
            says: says.into(),
        };
        let probes = Probes {
            gpus: vec![OfRuntime {
                runtime: "CUDA".into(),
                ended: None,
                steps: vec![
                    tried("export 0000:1b:00.0", true, "dma-buf"),
                    tried(
                        "register mlx5_0 0000:1b:00.0",
                        false,
                        "mlx5_0 cannot register a dma-buf of the GPU: it does not take dma-bufs; and more",
                    ),
                ],
            }],
            windows: vec![tried(
                "BAR1 of 00000000:1B:00.0",
                true,
                "137438953472 bytes",
            )],
            storage: vec![],
        };
        let text = crate::render::plain(&render(&probes, 80));
        let narrow = |line: &str| textwrap::core::display_width(line) <= 80;
        assert!(text.lines().all(narrow), "{text}");
        assert!(
            text.contains("  yes CUDA: export 0000:1b:00.0: dma-buf\n"),
            "{text}"
        );
        assert!(
            text.contains("  no  CUDA: register mlx5_0 0000:1b:00.0: mlx5_0"),
            "{text}"
        );
    }
}
