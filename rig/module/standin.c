// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A stand-in for a GPU's memory BAR.
 *
 * QEMU's shared-memory device (ivshmem) is a plain piece of memory behind BAR 2. This driver hands
 * that BAR to the kernel's peer-to-peer layer and publishes it, so user space can map pieces of it
 * (/sys/bus/pci/devices/ADDRESS/p2pmem/allocate) and any driver can do DMA to them: what a GPU
 * driver does for a real BAR, with the kernel's own code deciding which peers may reach it.
 */
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/pci-p2pdma.h>

#define STANDIN_VENDOR 0x1af4
#define STANDIN_DEVICE 0x1110
#define STANDIN_BAR 2

static int standin_probe(struct pci_dev *dev, const struct pci_device_id *id)
{
	int error = pcim_enable_device(dev);

	if (error)
		return dev_err_probe(&dev->dev, error, "cannot enable the device\n");
	pci_set_master(dev);

	/* size 0 means the whole BAR */
	error = pci_p2pdma_add_resource(dev, STANDIN_BAR, 0, 0);
	if (error)
		return dev_err_probe(&dev->dev, error, "cannot register BAR %d for peer-to-peer DMA\n", STANDIN_BAR);
	pci_p2pmem_publish(dev, true);
	return 0;
}

static const struct pci_device_id standin_ids[] = {
	{ PCI_DEVICE(STANDIN_VENDOR, STANDIN_DEVICE) },
	{ }
};
MODULE_DEVICE_TABLE(pci, standin_ids);

static struct pci_driver standin_driver = {
	.name = "crowfly_standin",
	.id_table = standin_ids,
	.probe = standin_probe,
};
module_pci_driver(standin_driver);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Publishes BAR 2 of a shared-memory device as peer-to-peer memory");
