//! Packets over the loopback device. The kernel receives each packet in a soft interrupt, within the call that sends it.

#![expect(unsafe_code, reason = "attaching a filter to a socket has no safe form")]

use std::{
    io,
    net::{Ipv4Addr, UdpSocket},
    os::fd::AsRawFd as _,
    path::PathBuf,
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{cgroup, process};

/// `podperf-load flood`.
#[derive(Args, Clone, Debug)]
pub struct FloodArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// CPU to stay on
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Packets to send
    #[arg(long, default_value_t = 20_000)]
    pub packets: u32,
    /// Divisions in the receiver's filter, which runs in the soft interrupt, and drops each packet
    #[arg(long, default_value_t = 0)]
    pub steps: u16,
}

/// The sender's measurements of itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FloodReport {
    /// Wall time of all sends without the time in which the sender waited for a CPU. Interrupts are a part of it.
    pub on_cpu_ns: u64,
}

/// Sends all packets.
pub fn run(args: &FloodArgs) -> Result<FloodReport> {
    if let Some(cpu) = args.cpu {
        process::pin(cpu)?;
    }
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("failed to open a socket")?;
    filter(&receiver, args.steps)?;
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("failed to open a socket")?;
    sender.connect(receiver.local_addr()?)?;
    let on_cpu_ns = process::wall_without_queue_ns(|| {
        for _ in 0..args.packets {
            sender.send(&[0; 64]).context("failed to send a packet")?;
        }
        Ok(())
    })?;
    Ok(FloodReport { on_cpu_ns })
}

/// Gives a socket a filter that divides this number of times, and drops all packets.
fn filter(socket: &UdpSocket, steps: u16) -> Result<()> {
    let step = |code: u32, k| {
        let code = u16::try_from(code).unwrap_or(u16::MAX);
        libc::sock_filter { code, jt: 0, jf: 0, k }
    };
    let mut filter = vec![step(libc::BPF_LD | libc::BPF_IMM, u32::MAX)];
    filter.extend(vec![step(libc::BPF_ALU | libc::BPF_DIV | libc::BPF_K, 1); usize::from(steps)]);
    filter.push(step(libc::BPF_RET | libc::BPF_K, 0));
    let program = libc::sock_fprog { len: u16::try_from(filter.len())?, filter: filter.as_mut_ptr() };
    let size = libc::socklen_t::try_from(size_of::<libc::sock_fprog>())?;
    // SAFETY: the program and its steps outlive the call, which copies them.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size,
        )
    };
    ensure!(result == 0, "failed to attach a filter: {}", io::Error::last_os_error());
    Ok(())
}
