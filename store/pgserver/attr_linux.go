package pgserver

import "syscall"

// childAttr keeps the child out of our process group, so that Ctrl-C in the
// terminal does not stop the database before the journal has been written, and
// has the kernel stop it when we die, however that happens. The kernel takes
// the death of the thread that started the child for ours.
func childAttr(cred *syscall.Credential) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Credential: cred, Pdeathsig: syscall.SIGINT}
}
