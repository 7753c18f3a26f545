//! Each kind's facts on one line.

use std::fmt;

use super::{
    Fabric, Facts, Gpu, Kind, Memory, Model, Nic, Pcie, Price, Reliability, Server, StorageSystem,
    Switch,
};

/// `5 a, 6 b`: the facts that are known, in order.
fn known(parts: impl IntoIterator<Item = Option<String>>) -> String {
    let known: Vec<String> = parts.into_iter().flatten().collect();
    known.join(", ")
}

fn with<T: fmt::Display>(value: Option<T>, unit: &str) -> Option<String> {
    value.map(|value| format!("{value} {unit}"))
}

impl Facts for Gpu {
    const KIND: Kind = Kind::Gpu;
    fn summary(&self) -> String {
        known([
            with(self.hbm_gb, "GB").or_else(|| with(self.hbm_gib, "GiB")),
            with(self.hbm_tbs, "TB/s HBM"),
            with(self.nvlink_gbs, "GB/s NVLink"),
            with(self.scaleup_gbs, "GB/s between GPUs"),
            with(self.ici_gbs_bidir, "GB/s ICI"),
            with(self.bf16_tflops, "TFLOPS bf16"),
            self.pcie_gen.map(|gen_| format!("PCIe Gen{gen_}")),
        ])
    }
}

impl Facts for Memory {
    const KIND: Kind = Kind::Memory;
    fn summary(&self) -> String {
        let channels = self.sockets.zip(self.channels).zip(self.mts);
        known([
            self.cpu.clone(),
            channels
                .map(|((sockets, channels), mts)| format!("{sockets} x {channels} x {mts} MT/s")),
            Some(format!("{} GB/s peak", self.peak_gbs)),
            self.per.as_ref().map(|part| format!("per {part}")),
        ])
    }
}

impl Facts for Server {
    const KIND: Kind = Kind::Server;
    fn summary(&self) -> String {
        let nics = self.nics.zip(self.nic_gbps);
        known([
            Some(format!("{} x {}", self.gpus, self.gpu)),
            self.nvlink_domain
                .filter(|domain| *domain != self.gpus)
                .map(|domain| format!("NVLink of {domain}")),
            nics.map(|(nics, gbps)| format!("{nics} x {gbps} Gb/s")),
            Some(self.transport.to_string()),
        ])
    }
}

impl Facts for Nic {
    const KIND: Kind = Kind::Nic;
    fn summary(&self) -> String {
        let slot = self.pcie_gen.zip(self.pcie_lanes);
        known([
            Some(format!("{} Gb/s", self.gbps)),
            self.ib.clone(),
            self.eth.filter(|eth| *eth).map(|_| "Ethernet".into()),
            slot.map(|(gen_, lanes)| format!("PCIe Gen{gen_} x{lanes}")),
            self.gdr.filter(|gdr| *gdr).map(|_| "GPUDirect RDMA".into()),
        ])
    }
}

impl Facts for Switch {
    const KIND: Kind = Kind::Switch;
    fn summary(&self) -> String {
        let otherwise = self.alt_ports.zip(self.alt_gbps);
        known([
            Some(format!("{} x {} Gb/s", self.ports, self.port_gbps)),
            otherwise.map(|(ports, gbps)| format!("or {ports} x {gbps} Gb/s")),
            self.family.clone(),
            self.ib.clone(),
        ])
    }
}

impl Facts for Pcie {
    const KIND: Kind = Kind::Pcie;
    fn summary(&self) -> String {
        known([
            Some(format!("{} GB/s each way, x16", self.raw_gbs)),
            with(self.usable_gbs, "GB/s reached"),
        ])
    }
}

impl Facts for StorageSystem {
    const KIND: Kind = Kind::Storage;
    fn summary(&self) -> String {
        known([
            Some(self.class.as_str().to_owned()),
            with(self.gbs, "GB/s"),
            with(self.mbps_per_tib, "MB/s per TiB"),
            with(self.max_gbs, "GB/s at most"),
            with(self.client_gbs, "GB/s a client"),
            with(self.per_server_gbs, "GB/s a server"),
            Some(format!("GPUDirect Storage: {}", self.direct.as_str())),
        ])
    }
}

impl Facts for Fabric {
    const KIND: Kind = Kind::Fabric;
    fn summary(&self) -> String {
        let list = |name: &str, values: &[u32]| {
            let joined: Vec<String> = values.iter().map(u32::to_string).collect();
            (!values.is_empty()).then(|| format!("{name} {}", joined.join("/")))
        };
        known([
            list("GPUs", &self.gpus),
            list("leaf", &self.leaf),
            list("spine", &self.spine),
            list("core", &self.core),
            self.oversubscription.map(|o| format!("{o}:1")),
        ])
    }
}

impl Facts for Model {
    const KIND: Kind = Kind::Model;
    fn summary(&self) -> String {
        let experts = self.experts.zip(self.experts_per_token);
        known([
            Some(format!("{} B parameters", self.params / 1e9)),
            self.active_params.map(|p| format!("{} B active", p / 1e9)),
            with(self.layers, "layers"),
            self.hidden.map(|hidden| format!("width {hidden}")),
            experts.map(|(all, used)| format!("{used} of {all} experts")),
        ])
    }
}

impl Facts for Price {
    const KIND: Kind = Kind::Price;
    fn summary(&self) -> String {
        known([
            with(self.usd, "USD"),
            self.usd_high.map(|usd| format!("to {usd} USD")),
            with(self.watts, "W"),
            self.fraction.map(|f| format!("{} %", f * 100.0)),
            Some(self.date.clone()),
        ])
    }
}

impl Facts for Reliability {
    const KIND: Kind = Kind::Reliability;
    fn summary(&self) -> String {
        known([
            with(self.gpus, "GPUs"),
            with(self.days, "days"),
            with(self.unexpected, "interruptions"),
            with(self.per_1000_node_days, "per 1,000 server days"),
            with(self.accelerator_mttf_h, "h to failure"),
            with(self.mtti_h, "h to interruption"),
        ])
    }
}
