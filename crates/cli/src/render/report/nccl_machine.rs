//! The machine that a pasted NCCL topology describes, by way of the XML that the map reads.

use std::fmt::Write;

use crowfly_doctor::evidence::Artefact;
use crowfly_doctor::evidence::nccl_xml::{Index, NcclTopology, XmlFunction};
use crowfly_doctor::{Case, Machine};
use crowfly_route::topology::{Device, Topology};

use crate::render::svg::escape;

/// Bridges inside one another that are followed; a machine has a handful.
const MAX_DEPTH: usize = 32;

/// A machine that is drawn.
pub struct Drawn<'a> {
    /// Where it was read from.
    pub source: &'a str,
    /// What is drawn.
    pub topology: Topology,
    /// The file that names its GPUs by number, where it is one.
    named_by: Option<&'a NcclTopology>,
}

impl<'a> Drawn<'a> {
    /// A machine that was looked at.
    pub fn of(machine: &'a Machine) -> Self {
        Self {
            source: machine.source.as_str(),
            topology: (*machine.topology).clone(),
            named_by: None,
        }
    }

    /// The machines of NCCL topologies among the documents.
    pub fn pasted(case: &'a Case) -> impl Iterator<Item = Self> {
        case.documents.iter().flat_map(|document| {
            document.sections.iter().filter_map(|section| {
                let Artefact::NcclTopology(file) = &section.artefact else {
                    return None;
                };
                let source = file
                    .cpus
                    .first()
                    .map(|cpu| &cpu.cite.source)
                    .or(file.gpus.first().map(|gpu| &gpu.cite.source))?;
                Some(Self {
                    source: source.as_str(),
                    topology: Topology::from_any(xml(file).as_bytes()).ok()?,
                    named_by: Some(file),
                })
            })
        })
    }

    /// The device of this name.
    pub fn device(&self, name: &str) -> Option<Device> {
        if let Some(file) = self.named_by
            && let Some(number) = name.strip_prefix("GPU").and_then(|n| n.parse::<u32>().ok())
        {
            // Numbers of the file need not follow the addresses, as those of the map do.
            let gpu = file.gpus.iter().find(|gpu| gpu.device == number)?;
            let address = file.functions.get(gpu.function?)?.address?;
            return self.topology.find(&address.to_string());
        }
        self.topology
            .find(name)
            .or_else(|| self.topology.find(&name.to_ascii_lowercase()))
    }
}

/// The file as NCCL writes it, with what the doctor read of it.
fn xml(file: &NcclTopology) -> String {
    let mut xml = String::from("<system version=\"1\">\n");
    for (at, cpu) in file.cpus.iter().enumerate() {
        let numa = cpu.numa.map_or(-1, |numa| i64::from(numa.0));
        let _ = writeln!(
            xml,
            "<cpu numaid=\"{numa}\" arch=\"{}\" vendor=\"{}\">",
            escape(&cpu.arch),
            escape(&cpu.vendor)
        );
        for (index, function) in file.functions.iter().enumerate() {
            if function.parent.is_none() && function.cpu == Some(at) {
                push(&mut xml, file, index, function, 0);
            }
        }
        xml.push_str("</cpu>\n");
    }
    xml.push_str("</system>\n");
    xml
}

fn push(xml: &mut String, file: &NcclTopology, at: Index, function: &XmlFunction, depth: usize) {
    let Some(address) = function.address.filter(|_| depth < MAX_DEPTH) else {
        return;
    };
    let speed = function.gigatransfers.map_or(String::new(), |rate| {
        format!(" link_speed=\"{rate:.1} GT/s PCIe\"")
    });
    let width = function
        .lanes
        .map_or(String::new(), |lanes| format!(" link_width=\"{lanes}\""));
    let _ = writeln!(
        xml,
        "<pci busid=\"{address}\" class=\"0x{:06x}\"{speed}{width}>",
        function.class
    );
    for gpu in file.gpus.iter().filter(|gpu| gpu.function == Some(at)) {
        let sm = gpu.sm.map_or(String::new(), |sm| format!(" sm=\"{sm}\""));
        let _ = writeln!(xml, "<gpu dev=\"{}\"{sm}/>", gpu.device);
    }
    let nets: Vec<_> = file
        .nets
        .iter()
        .filter(|net| net.function == Some(at))
        .collect();
    if !nets.is_empty() {
        xml.push_str("<nic>\n");
        for net in nets {
            let speed = net.speed_mbps.unwrap_or_default();
            let _ = writeln!(
                xml,
                "<net name=\"{}\" dev=\"{}\" speed=\"{speed}\" port=\"1\" gdr=\"{}\"/>",
                escape(&net.name),
                net.device.unwrap_or_default(),
                u8::from(net.gdr.unwrap_or_default())
            );
        }
        xml.push_str("</nic>\n");
    }
    for (index, below) in file.functions.iter().enumerate() {
        if below.parent == Some(at) && index != at {
            push(xml, file, index, below, depth + 1);
        }
    }
    xml.push_str("</pci>\n");
}
