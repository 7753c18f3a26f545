//! The help of an option tells the range of its quantity.

use clap::{Arg, Command};
use crowfly_plan::quantity::{ALLOWED_STALL, GIVEN, Quantity, STALL};

/// The quantity that an option of a question gives.
fn quantity(question: &str, option: &str) -> Option<Quantity> {
    let name = format!("--{option}");
    let found = GIVEN.into_iter().find(|quantity| quantity.option == name)?;
    Some(match question {
        "interval" if found == ALLOWED_STALL => STALL,
        _ => found,
    })
}

/// An option whose help tells the range.
pub fn told(question: &str, option: Arg) -> Arg {
    let quantity = option.get_long().and_then(|long| quantity(question, long));
    match (quantity, option.get_help()) {
        (Some(quantity), Some(help)) => {
            let help = format!("{help} [{}]", quantity.range());
            option.help(help)
        }
        _ => option,
    }
}

/// A question whose options tell their ranges.
pub fn told_in(question: Command) -> Command {
    let name = question.get_name().to_owned();
    question.mut_args(|option| told(&name, option))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Args;

    use super::*;
    use crate::commands::plan::PlanArgs;

    #[test]
    fn every_quantity_that_an_option_gives_has_its_range_in_the_help() {
        let mut plan = PlanArgs::augment_args(Command::new("plan"));
        plan.build();
        let mut told = BTreeSet::new();
        let questions = plan.get_subcommands().chain([&plan]);
        for question in questions {
            for option in question.get_arguments() {
                let help = option
                    .get_help()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                for quantity in GIVEN {
                    let long = option.get_long().unwrap_or_default();
                    if quantity.option == format!("--{long}")
                        && help.ends_with(&format!(" [{}]", quantity.range()))
                    {
                        told.insert(quantity.name);
                    }
                }
            }
        }
        let all: BTreeSet<&str> = GIVEN.iter().map(|quantity| quantity.name).collect();
        assert_eq!(told, all);
    }
}
