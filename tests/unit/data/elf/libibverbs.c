/* Stands in for libibverbs: remembers what a provider registers. REGISTER is verbs_register_driver_<private ABI>. */
#include <stdint.h>

struct registration {
	const char *name;
	uint32_t lowest, highest;
};

char seen_name[64];
uint32_t seen_lowest, seen_highest, seen;

void REGISTER(const struct registration *ops)
{
	for (int i = 0; i < 63 && ops->name[i]; i++)
		seen_name[i] = ops->name[i];
	seen_lowest = ops->lowest;
	seen_highest = ops->highest;
	seen++;
}
