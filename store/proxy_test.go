package store_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
)

// proxy stands between a pool and its server and can lose an answer.
type proxy struct {
	url string
	// swallowCommit makes the next COMMIT reach the server and its answer not
	// come back: the connection ends instead.
	swallowCommit atomic.Bool
}

func newProxy(t *testing.T, at string) *proxy {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	socket := fmt.Sprintf("%s/.s.PGSQL.%s", u.Query().Get("host"), u.Query().Get("port"))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{url: fmt.Sprintf("postgres://%s@%s%s?sslmode=disable", u.User.Username(), listener.Addr(), u.Path)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", socket)
			if err != nil {
				client.Close()
				continue
			}
			go p.relay(client, server)
		}
	}()
	t.Cleanup(func() { listener.Close(); <-done })
	return p
}

func (p *proxy) relay(client, server net.Conn) {
	defer client.Close()
	defer server.Close()
	var mute atomic.Bool
	back := make(chan struct{})
	go func() {
		defer close(back)
		defer client.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if err != nil {
				return
			}
			// The answer to the commit: it is committed, and nobody hears it.
			if mute.Load() && bytes.Contains(buf[:n], []byte("COMMIT\x00")) {
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			break
		}
		if bytes.Contains(buf[:n], []byte("commit\x00")) && p.swallowCommit.CompareAndSwap(true, false) {
			mute.Store(true)
		}
		if _, err := io.Copy(server, bytes.NewReader(buf[:n])); err != nil {
			break
		}
	}
	server.Close()
	<-back
}
