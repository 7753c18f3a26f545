//! The reader of `lspci -t` and `-tv`.
//!
//! A function belongs to the branch in whose column it stands; a bracket behind it names the buses
//! of the branch that it opens to the right.

use crowfly_route::units::PciAddress;

use super::{LspciTree, TreeFunction};
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::{Artefact, Format};

/// Most functions kept.
const MAX_FUNCTIONS: usize = 16_384;
/// Most branches inside one another.
const MAX_DEPTH: usize = 64;

/// Functions that stand in one column.
struct Branch {
    column: usize,
    domain: u32,
    bus: u8,
    above: Vec<PciAddress>,
}

#[derive(Default)]
pub(crate) struct LspciTreeReader {
    found: LspciTree,
    branches: Vec<Branch>,
}

impl Reader for LspciTreeReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let root = root(line.text);
        let is_top = line.text.starts_with("-");
        if is_top && root.is_some() && !self.found.functions.is_empty() {
            return Verdict::Restart;
        }
        let mut at = 0;
        let mut opening = None;
        if let Some((domain, bus, after)) = root {
            self.branches.clear();
            opening = Some((domain, bus, Vec::new()));
            at = after;
        }
        if root.is_none() && self.branches.is_empty() {
            return Verdict::Refused;
        }
        let taken = self.functions(line, at, opening);
        if taken || root.is_some() {
            Verdict::Taken
        } else {
            Verdict::Refused
        }
    }

    fn finish(self: Box<Self>) -> Option<(Format, Artefact)> {
        let says_something = !self.found.functions.is_empty();
        says_something.then_some((Format::LspciTree, Artefact::LspciTree(self.found)))
    }
}

impl LspciTreeReader {
    /// Reads the functions of a line from a place on; `opening` is the branch that the first of them
    /// begins. Says whether there was any.
    fn functions(
        &mut self,
        line: &Line<'_>,
        from: usize,
        opening: Option<(u32, u8, Vec<PciAddress>)>,
    ) -> bool {
        let text = line.text;
        let (mut at, mut opening, mut any) = (from, opening, false);
        loop {
            // Only the drawing may stand in front of a function.
            let Some(skip) =
                text[at..].find(|c: char| !matches!(c, ' ' | '|' | '+' | '\\' | '-' | '`'))
            else {
                return any;
            };
            let column = at + skip;
            let Some((device, function, after)) = slot(&text[column..]) else {
                return any;
            };
            match opening.take() {
                Some((domain, bus, above)) if self.branches.len() < MAX_DEPTH => {
                    self.branches.retain(|b| b.column < column);
                    self.branches.push(Branch {
                        column,
                        domain,
                        bus,
                        above,
                    });
                }
                Some(_) => return any,
                None => self.branches.retain(|b| b.column <= column),
            }
            let Some(branch) = self.branches.last().filter(|b| b.column == column) else {
                return any;
            };
            let address = PciAddress {
                domain: branch.domain,
                bus: branch.bus,
                device,
                function,
            };
            let above = branch.above.clone();
            let after = column + after;
            let bridge = bridge(&text[after..]);
            any = true;
            if self.found.functions.len() < MAX_FUNCTIONS {
                self.found.functions.push(TreeFunction {
                    address,
                    above: above.clone(),
                    bridges_to: bridge.map(|(first, last, _)| (first, last)),
                    name: match bridge {
                        Some(_) => String::new(),
                        None => text[after..].trim().to_owned(),
                    },
                    cite: line.cite(),
                });
            }
            let Some((secondary, _, length)) = bridge else {
                return any;
            };
            let mut below = above;
            below.push(address);
            opening = Some((address.domain, secondary, below));
            at = after + length;
        }
    }
}

/// `[0000:60]` or `[0000:60-73]` with nothing but drawing before it: domain, bus, where it ends.
fn root(text: &str) -> Option<(u32, u8, usize)> {
    let open = text.find('[')?;
    let is_drawing = |c: char| matches!(c, ' ' | '|' | '+' | '\\' | '-' | '`');
    text[..open].chars().all(is_drawing).then_some(())?;
    let close = open + text[open..].find(']')?;
    let (domain, bus) = text[open + 1..close].split_once(':')?;
    let bus = bus.split('-').next()?;
    Some((
        u32::from_str_radix(domain, 16).ok()?,
        u8::from_str_radix(bus, 16).ok()?,
        close + 1,
    ))
}

/// `01.1`: device, function, length.
fn slot(text: &str) -> Option<(u8, u8, usize)> {
    let (device, rest) = (text.get(..2)?, text.get(2..4)?);
    let function = rest.strip_prefix('.')?;
    let device = u8::from_str_radix(device, 16).ok().filter(|d| *d < 32)?;
    let function = u8::from_str_radix(function, 16).ok().filter(|f| *f < 8)?;
    let end = text[4..].chars().next();
    matches!(end, None | Some(' ' | '-')).then_some((device, function, 4))
}

/// `-[61-73]` or `-[01]`: first bus, last bus, length.
fn bridge(text: &str) -> Option<(u8, u8, usize)> {
    let inside = text.strip_prefix("-[")?;
    let close = inside.find(']')?;
    let (first, last) = inside[..close]
        .split_once('-')
        .unwrap_or((&inside[..close], &inside[..close]));
    let bus = |text: &str| u8::from_str_radix(text, 16).ok();
    Some((bus(first)?, bus(last)?, 2 + close + 1))
}
