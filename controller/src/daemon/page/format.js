// Numbers, times and durations as text, in Slurm's manner.

const counts = new Intl.NumberFormat("en");
const PREFIXES = ["", "k", "M", "G", "T", "P"];

export const NOTHING = "–";

const known = (value) => value !== null && value !== undefined;

export const text = (value) => known(value) ? String(value) : NOTHING;

export const count = (value) => known(value) ? counts.format(value) : NOTHING;

export const decimals = (value, places) => known(value) ? value.toFixed(places) : NOTHING;

// Four significant digits: 12, 305.2, 9,876, 12.34 k, 1.294 M.
export const amount = (value) => {
  if (!known(value)) return NOTHING;
  let [left, step] = [value, 0];
  if (left >= 9999.5) {
    while (left >= 999.95 && step < PREFIXES.length - 1) [left, step] = [left / 1000, step + 1];
  }
  const places = Number.isInteger(left) || left >= 1000 ? 0 : left >= 100 ? 1 : left >= 10 ? 2 : 3;
  const number = step === 0 ? counts.format(Number(left.toFixed(places))) : left.toFixed(places);
  return `${number} ${PREFIXES[step]}`.trim();
};

// Days-HH:MM:SS, as squeue writes it.
export const duration = (seconds) => {
  if (!known(seconds)) return NOTHING;
  const whole = Math.max(0, Math.round(seconds));
  const two = (value) => String(value).padStart(2, "0");
  const [days, hours] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24];
  const rest = `${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  if (days > 0) return `${days}-${two(hours)}:${rest}`;
  return hours > 0 ? `${hours}:${rest}` : rest;
};

const twoDigits = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const ofToday = new Intl.DateTimeFormat("en-GB", twoDigits);

const isoDate = (date) =>
  [date.getFullYear(), date.getMonth() + 1, date.getDate()]
    .map((part) => String(part).padStart(2, "0")).join("-");

// Local time; with its date when that is not the one of `now_s`.
export const time = (epoch_s, now_s) => {
  if (!known(epoch_s)) return NOTHING;
  const date = new Date(epoch_s * 1000);
  const clock = ofToday.format(date);
  return isoDate(date) === isoDate(new Date(now_s * 1000)) ? clock : `${isoDate(date)} ${clock}`;
};

export const nodeHours = (node_s) => decimals(known(node_s) ? node_s / 3600 : node_s, 2);
