// Numbers and times as people read them.

const whole = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en-US', { maximumSignificantDigits: 3 });

export const count = (value) => whole.format(value);
export const rate = (value) => (value >= 100 ? whole.format(value) : short.format(value));
export const seconds = (value) => (value < 10 ? `${value.toFixed(2)} s` : value < 120 ? `${value.toFixed(0)} s` : `${(value / 60).toFixed(1)} min`);
export const plural = (value, one, many) => `${count(value)} ${value === 1 ? one : many}`;
export const percent = (part, all) => (all > 0 ? `${Math.round((100 * part) / all)} %` : '–');

export function bytes(value) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let at = 0;
  for (; value >= 1024 && at < units.length - 1; ++at) value /= 1024;
  return `${at === 0 ? value : short.format(value)} ${units[at]}`;
}

export function ago(time) {
  const minutes = (Date.now() - time) / 60_000;
  if (minutes < 1) return 'now';
  if (minutes < 60) return `${Math.floor(minutes)} min`;
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h`;
  return new Date(time).toLocaleDateString(undefined, { day: 'numeric', month: 'short' });
}
