//! The reader of NCCL's XML.

use crowfly_route::units::NumaNode;

use super::{
    Index, LinkKind, NcclGraph, NcclTopology, XmlCpu, XmlFunction, XmlGpu, XmlGraph, XmlLink,
    XmlNet,
};
use crate::evidence::line::Line;
use crate::evidence::reader::{Reader, Verdict};
use crate::evidence::xml_tags::{Tag, TagKind, Tags};
use crate::evidence::{Artefact, Format};

/// Most elements kept of each kind.
const MAX_ELEMENTS: usize = 16_384;
/// Deepest nesting followed.
const MAX_DEPTH: usize = 64;

/// An element that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    Cpu(Index),
    Function(Index),
    Gpu(Index),
    Other,
}

/// Reads a topology.
#[derive(Default)]
pub(crate) struct NcclTopologyReader {
    tags: Tags,
    found: NcclTopology,
    stack: Vec<Inside>,
    begun: bool,
    ended: bool,
}

impl Reader for NcclTopologyReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let opens_document = line.text.contains("<system ");
        let has = |words: &str| line.text.contains(words);
        let fresh = opens_document
            || has("<cpu numaid=")
            || has("<pci busid=")
            || has("<net name=")
            || (has("<gpu dev=") && has(" sm="));
        if self.begun && opens_document {
            return Verdict::Restart;
        }
        let belongs = self.begun && self.tags.wants(line.text);
        if !belongs && !fresh {
            return Verdict::Refused;
        }
        self.begun = true;
        let mut tags = std::mem::take(&mut self.tags);
        tags.feed(line.full, |tag| self.tag(tag, line));
        self.tags = tags;
        if self.ended {
            Verdict::Last
        } else {
            Verdict::Taken
        }
    }

    fn finish(mut self: Box<Self>) -> Option<(Format, Artefact)> {
        self.found.clipped |= !self.ended;
        let found = self.found;
        let says_something =
            !(found.functions.is_empty() && found.cpus.is_empty() && found.gpus.is_empty());
        says_something.then_some((Format::NcclTopology, Artefact::NcclTopology(found)))
    }
}

impl NcclTopologyReader {
    fn tag(&mut self, tag: &Tag<'_>, line: &Line<'_>) {
        match tag.kind {
            TagKind::End if tag.name == "system" => self.ended = true,
            TagKind::End => {
                // An end without a beginning: the head was clipped.
                self.found.clipped |= self.stack.pop().is_none();
            }
            TagKind::Begin | TagKind::Whole if tag.name == "system" => {}
            TagKind::Begin | TagKind::Whole => {
                let inside = self.element(tag, line);
                if tag.kind == TagKind::Begin && self.stack.len() < MAX_DEPTH {
                    self.stack.push(inside);
                }
            }
        }
    }

    fn element(&mut self, tag: &Tag<'_>, line: &Line<'_>) -> Inside {
        match tag.name {
            "cpu" if self.found.cpus.len() < MAX_ELEMENTS => {
                self.found.cpus.push(XmlCpu {
                    numa: tag.number("numaid").map(NumaNode),
                    arch: tag.attribute("arch").unwrap_or_default().to_owned(),
                    vendor: tag.attribute("vendor").unwrap_or_default().to_owned(),
                    family: tag.number("familyid"),
                    model: tag.number("modelid"),
                    cite: line.cite(),
                });
                Inside::Cpu(self.found.cpus.len() - 1)
            }
            "pci" if self.found.functions.len() < MAX_ELEMENTS => {
                let ids = tag.hexadecimal("vendor").zip(tag.hexadecimal("device"));
                self.found.functions.push(XmlFunction {
                    address: tag.number("busid"),
                    class: tag.hexadecimal("class").unwrap_or_default(),
                    ids: ids.map(|(vendor, device)| (vendor as u16, device as u16)),
                    cpu: self.cpu(),
                    parent: self.function(),
                    gigatransfers: tag.attribute("link_speed").and_then(gigatransfers),
                    lanes: tag.number("link_width").filter(|lanes| *lanes > 0),
                    cite: line.cite(),
                });
                Inside::Function(self.found.functions.len() - 1)
            }
            "gpu" if self.found.gpus.len() < MAX_ELEMENTS => {
                self.found.gpus.push(XmlGpu {
                    device: tag.number("dev").unwrap_or_default(),
                    rank: tag.number("rank"),
                    sm: tag.number("sm").filter(|_| tag.attribute("gcn").is_none()),
                    gcn: tag.attribute("gcn").map(str::to_owned),
                    gdr: tag.flag("gdr"),
                    function: self.function(),
                    links: Vec::new(),
                    cite: line.cite(),
                });
                Inside::Gpu(self.found.gpus.len() - 1)
            }
            "nvlink" => self.link(tag, LinkKind::NvLink),
            "xgmi" => self.link(tag, LinkKind::Xgmi),
            "c2c" => self.link(tag, LinkKind::C2c),
            "net" if self.found.nets.len() < MAX_ELEMENTS => {
                self.found.nets.push(XmlNet {
                    name: tag.attribute("name").unwrap_or_default().to_owned(),
                    device: tag.number("dev"),
                    speed_mbps: tag.number("speed"),
                    gdr: tag.flag("gdr"),
                    coll: tag.flag("coll"),
                    function: self.function(),
                    cpu: self.cpu(),
                    cite: line.cite(),
                });
                Inside::Other
            }
            _ => Inside::Other,
        }
    }

    fn link(&mut self, tag: &Tag<'_>, kind: LinkKind) -> Inside {
        if let Some(Inside::Gpu(at)) = self.stack.last()
            && let Some(gpu) = self.found.gpus.get_mut(*at)
            && gpu.links.len() < MAX_ELEMENTS
        {
            gpu.links.push(XmlLink {
                kind,
                target: tag.number("target"),
                count: tag.number("count").unwrap_or(1),
                target_class: tag.hexadecimal("tclass"),
            });
        }
        Inside::Other
    }

    fn cpu(&self) -> Option<Index> {
        self.stack.iter().rev().find_map(|inside| match inside {
            Inside::Cpu(at) => Some(*at),
            _ => None,
        })
    }

    fn function(&self) -> Option<Index> {
        self.stack.iter().rev().find_map(|inside| match inside {
            Inside::Function(at) => Some(*at),
            _ => None,
        })
    }
}

/// `16 GT/s`, `32.0 GT/s PCIe`.
fn gigatransfers(text: &str) -> Option<f64> {
    let number: f64 = text.split_whitespace().next()?.parse().ok()?;
    (number.is_finite() && number > 0.0).then_some(number)
}

/// Reads channel graphs.
#[derive(Default)]
pub(crate) struct NcclGraphReader {
    tags: Tags,
    found: NcclGraph,
    begun: bool,
    ended: bool,
}

impl Reader for NcclGraphReader {
    fn offer(&mut self, line: &Line<'_>) -> Verdict {
        let opens_document = line.text.contains("<graphs ") || line.text.contains("<graphs>");
        if self.begun && opens_document {
            return Verdict::Restart;
        }
        let belongs = self.begun && self.tags.wants(line.text);
        if !belongs && !opens_document && !line.text.contains("<graph id=") {
            return Verdict::Refused;
        }
        self.begun = true;
        let mut tags = std::mem::take(&mut self.tags);
        tags.feed(line.full, |tag| self.tag(tag, line));
        self.tags = tags;
        if self.ended {
            Verdict::Last
        } else {
            Verdict::Taken
        }
    }

    fn finish(mut self: Box<Self>) -> Option<(Format, Artefact)> {
        self.found.clipped = !self.ended;
        let says_something = !self.found.graphs.is_empty();
        says_something.then_some((Format::NcclGraph, Artefact::NcclGraph(self.found)))
    }
}

impl NcclGraphReader {
    fn tag(&mut self, tag: &Tag<'_>, line: &Line<'_>) {
        match (tag.kind, tag.name) {
            (TagKind::End, "graphs") => self.ended = true,
            (TagKind::Begin | TagKind::Whole, "graph")
                if self.found.graphs.len() < MAX_ELEMENTS =>
            {
                self.found.graphs.push(line.cite().of(XmlGraph {
                    id: tag.number("id").unwrap_or_default(),
                    pattern: tag.number("pattern"),
                    cross_nic: tag.flag("crossnic"),
                    channels: tag.number("nchannels").unwrap_or_default(),
                    speed_intra: tag.number("speedintra"),
                    speed_inter: tag.number("speedinter"),
                    type_intra: tag.attribute("typeintra").map(str::to_owned),
                    type_inter: tag.attribute("typeinter").map(str::to_owned),
                    nets: Vec::new(),
                    gpus: Vec::new(),
                }));
            }
            (TagKind::Begin | TagKind::Whole, "net" | "gpu") => {
                let Some(graph) = self.found.graphs.last_mut() else {
                    return;
                };
                let used = match tag.name {
                    "net" => &mut graph.value.nets,
                    _ => &mut graph.value.gpus,
                };
                if let Some(device) = tag.attribute("dev")
                    && used.len() < MAX_ELEMENTS
                    && !used.iter().any(|known| known == device)
                {
                    used.push(device.to_owned());
                }
            }
            _ => {}
        }
    }
}
